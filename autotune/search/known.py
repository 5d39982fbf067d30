"""What a search knows of the points that it tried, and the part of it that a suggestion looks at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autotune.search.dominance import dominates
from autotune.search.encoding import Encoding, Floats, squared_distances
from autotune.spec.measurement import Measurement
from autotune.spec.objective import Objective, Slo
from autotune.spec.space import Point, SearchSpace
from autotune.spec.verdict import Dominated, Infeasible, Measured, Verdict

MOST = 300
"""Points that a suggestion looks at: its cost grows with them, and more teach little (docs/design.md, 12)."""
_MOST_FAILED = 150
_MOST_FRONT = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """`values`: of every objective and SLO, by metric, where measured; empty for an engine that couldn't run.

    `complete` False: stopped before its end, so what it showed is less sure. `lost`: some requests failed.
    """

    point: Point
    ran: bool
    values: Mapping[str, float] = field(default_factory=dict)
    complete: bool = True
    lost: bool = False

    @classmethod
    def of(cls, point: Point, verdict: Verdict, objectives: Sequence[Objective], slos: Sequence[Slo]) -> Known | None:
        """None where the verdict says nothing about the configuration."""
        match verdict:
            case Infeasible():
                return cls(point=point, ran=False)
            case Measured(measurement=measurement) | Dominated(measurement=measurement):
                return cls(
                    point=point,
                    ran=True,
                    values=_values(measurement, [*(o.metric for o in objectives), *(s.metric for s in slos)]),
                    complete=isinstance(verdict, Measured),
                    lost=measurement.failed > 0,
                )
            case _:
                return None

    def form(self) -> dict[str, Any]:
        """All but the point, as JSON has it; `read` is its inverse."""
        return {"ran": self.ran, "values": dict(self.values), "complete": self.complete, "lost": self.lost}

    @classmethod
    def read(cls, point: Point, form: Mapping[str, Any]) -> Known:
        return cls(
            point=point,
            ran=form["ran"],
            values={str(name): float(value) for name, value in form["values"].items()},
            complete=form["complete"],
            lost=form["lost"],
        )

    def meets(self, slos: Sequence[Slo]) -> bool:
        """Every limit measured and kept, no request lost."""
        return self.ran and not self.lost and all(self._keeps(slo) for slo in slos)

    def _keeps(self, slo: Slo) -> bool:
        value = self.values.get(slo.metric)
        return value is not None and slo.keeps(value)

    def losses(self, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
        """Smaller is better; None when one is missing or the trial wasn't finished."""
        if not self.complete or any(objective.metric not in self.values for objective in objectives):
            return None
        return tuple(objective.sign * self.values[objective.metric] for objective in objectives)


def _values(measurement: Measurement, metrics: Sequence[str]) -> dict[str, float]:
    found = {metric: measurement.value(metric) for metric in metrics}
    return {metric: value for metric, value in found.items() if value is not None and math.isfinite(value)}


class Knowledge:
    """Grows by one at a time, in the order in which things were told. What is found here depends on that alone."""

    def __init__(self, space: SearchSpace, objectives: Sequence[Objective], slos: Sequence[Slo]) -> None:
        self.encoding = Encoding(space)
        self.objectives, self.slos = tuple(objectives), tuple(slos)
        self.ran: list[Known] = []
        self.failed: list[Known] = []
        self.outcomes: list[bool] = []
        """Of each in turn, whether it ran."""
        self._front: dict[bool, list[tuple[tuple[float, ...], Known]]] = {True: [], False: []}
        self._failed_at: list[Floats] = []

    def add(self, known: Known) -> None:
        self.outcomes.append(known.ran)
        if not known.ran:
            self.failed.append(known)
            self._failed_at.append(self.encoding.vectors([known.point])[0])
            return
        self.ran.append(known)
        losses = known.losses(self.objectives)
        if losses is None:
            return
        keeps = known.meets(self.slos)
        front = self._front[keeps]
        if not any(dominates(other, losses) for other, _ in front):
            self._front[keeps] = [(o, k) for o, k in front if not dominates(losses, o)] + [(losses, known)]

    @property
    def front(self) -> list[Known]:
        """The points that no other dominates, among those that keep every limit; where none does, among all."""
        return [known for _, known in self._front[True] or self._front[False]]

    def view(self) -> tuple[list[Known], list[Known]]:
        """What ran and what didn't, at most `MOST` together: the front, the failures nearest to it (they say where the
        edge is), and the most recent of the rest; in the order in which they were told."""
        if len(self.ran) + len(self.failed) <= MOST:
            return list(self.ran), list(self.failed)
        front = self.front[-_MOST_FRONT:]
        failed = self.failed
        if len(failed) > _MOST_FAILED:
            near = self._gap_to(front)
            kept = sorted(np.argsort(near, kind="stable")[:_MOST_FAILED].tolist())
            failed = [failed[index] for index in kept]
        chosen = {id(known) for known in front}
        for known in reversed(self.ran):
            if len(chosen) + len(failed) >= MOST:
                break
            chosen.add(id(known))
        return [known for known in self.ran if id(known) in chosen], list(failed)

    def _gap_to(self, front: Sequence[Known]) -> Floats:
        """Of each failure, how far the nearest of the front is; the latest is the nearest where there is no front."""
        if not front:
            return np.arange(len(self._failed_at), 0.0, -1.0, dtype=np.float64)
        nearest = squared_distances(np.array(self._failed_at), self.encoding.vectors([known.point for known in front]))
        return np.asarray(nearest.min(axis=1), dtype=np.float64)
