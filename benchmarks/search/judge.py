"""How good a run was, by the noiseless values of what it measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.search.dominance import dominates, hypervolume, surely_dominates
from autotune.spec.objective import Objective
from benchmarks.search.problems import Case, within
from benchmarks.search.runs import Run
from benchmarks.search.table import Row, full_gpu_s, key_of

CLOSE = 0.05
"""Arrived: within this of the best hypervolume and of the best first objective among what keeps the limits."""
BEYOND_NADIR = 0.1
"""The reference lies so much beyond the front's worst, in units of its extent: else the front's ends count nothing."""
LEAST_EXTENT = 0.1
"""Of the ideal. A front narrower than that isn't stretched: what differs by a few percent is as good as equal."""
_Z = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Of one problem: losses are shifted and stretched so that the front's ideal is 0 and its worst is 1."""

    ideal: tuple[float, ...]
    nadir: tuple[float, ...]
    best_volume: float
    best_first: float

    @classmethod
    def of(cls, case: Case, rows: Mapping[str, Row]) -> Scale:
        """Over every configuration that runs and keeps the limits. Raises ValueError where none does."""
        losses = [row.losses(case) for row in rows.values() if row.meets(case)]
        if not losses:
            raise ValueError(f"{case.name}: no configuration keeps the limits")
        edge = _front(losses)
        ideal = tuple(min(item[j] for item in edge) for j in range(len(edge[0])))
        worst = [max(item[j] for item in edge) for j in range(len(edge[0]))]
        nadir = tuple(max(w, i + LEAST_EXTENT * abs(i)) for w, i in zip(worst, ideal, strict=True))
        scale = cls(ideal=ideal, nadir=nadir, best_volume=1.0, best_first=ideal[0])
        return cls(ideal=ideal, nadir=nadir, best_volume=scale.volume(edge), best_first=ideal[0])

    def volume(self, losses: list[tuple[float, ...]]) -> float:
        scaled = [
            tuple(
                (x - low) / (high - low) if high > low else (x - low) / max(abs(low), 1e-12)
                for x, low, high in zip(item, self.ideal, self.nadir, strict=True)
            )
            for item in losses
        ]
        return hypervolume(scaled, (1.0 + BEYOND_NADIR,) * len(self.ideal))

    def close_first(self, loss: float) -> bool:
        return loss <= (self.best_first * (1 - CLOSE) if self.best_first < 0 else self.best_first / (1 - CLOSE))


def _front(losses: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    kept: list[tuple[float, ...]] = []
    for item in sorted(set(losses)):
        if not any(dominates(other, item) for other in kept):
            kept = [other for other in kept if not dominates(item, other)] + [item]
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """`arrived_gpu_s`: of the whole machine, from the start until both criteria held; None = never. `regret`: of the
    first objective, 1 - best found / best; `said_regret` the same of what it recommends (None = that doesn't run or
    breaks a limit). `worse`: what it recommends is worse than the default by the truth. `false_prunes`: see
    `false_prunes`; `full_gpu_s`: what the trials would have cost without pruning."""

    arrived_gpu_s: float | None
    volume: float
    regret: float
    said_regret: float | None
    worse: bool
    trials: int
    dead: int
    pruned: int
    false_prunes: int
    truly_best_prunes: int
    busy_gpu_s: float
    dead_gpu_s: float
    saved_gpu_s: float
    total_gpu_s: float


def judge(case: Case, rows: Mapping[str, Row], scale: Scale, run: Run) -> Judged:
    measured: list[tuple[float, ...]] = []
    arrived_s: float | None = None
    volume, first = 0.0, math.inf
    for event in run.events:
        row = rows[event.key]
        if event.kind != "measured" or not row.meets(case):
            continue
        losses = row.losses(case)
        if not any(dominates(other, losses) or other == losses for other in measured):
            measured = [other for other in measured if not dominates(losses, other)] + [losses]
            volume = scale.volume(measured)
            first = min(first, losses[0])
        if arrived_s is None and volume >= (1 - CLOSE) * scale.best_volume and scale.close_first(first):
            arrived_s = event.ended_s
    default = rows[key_of(case.problem.space.default())]
    said = rows[run.said] if run.said else None
    said_ok = said is not None and said.meets(case)
    pruned = [event for event in run.events if event.kind == "pruned"]
    false, truly_best = _false_prunes(case, rows, run)
    return Judged(
        arrived_gpu_s=None if arrived_s is None else arrived_s * case.devices,
        volume=volume / scale.best_volume,
        regret=_regret(scale, first) if first < math.inf else 1.0,
        said_regret=_regret(scale, said.losses(case)[0]) if said is not None and said_ok else None,
        worse=_worse(case, said, default),
        trials=len(run.events),
        dead=sum(event.kind == "dead" for event in run.events),
        pruned=len(pruned),
        false_prunes=false,
        truly_best_prunes=truly_best,
        busy_gpu_s=sum(event.gpu_s for event in run.events),
        dead_gpu_s=sum(event.gpu_s for event in run.events if event.kind == "dead"),
        saved_gpu_s=sum(full_gpu_s(rows[event.key]) - event.gpu_s for event in pruned),
        total_gpu_s=run.took_s * case.devices,
    )


def _regret(scale: Scale, loss: float) -> float:
    """0 at the best; the share that is missing (a throughput) or too much (a latency)."""
    return 1.0 - loss / scale.best_first if scale.best_first < 0 else 1.0 - scale.best_first / loss


def _worse(case: Case, said: Row | None, default: Row) -> bool:
    """What doesn't run is worse than anything; a default that doesn't is worse than anything that does."""
    if said is None or said.cause is not None:
        return True
    if default.cause is not None:
        return False
    if default.meets(case) != said.meets(case):
        return default.meets(case)
    return said.losses(case)[0] > default.losses(case)[0]


def _false_prunes(case: Case, rows: Mapping[str, Row], run: Run) -> tuple[int, int]:
    """Of the pruned trials: how many belong to the noise-aware front of what had been measured by then, and how many to
    the true one.

    Noise-aware: by the 95 % intervals of full-length runs around the truth (a run's luck and its rung's own error), no
    measured configuration surely dominates it; one whose limits nobody measured keeps and it does counts too.
    """
    false = truly = 0
    for event in run.events:
        if event.kind != "pruned":
            continue
        row = rows[event.key]
        rivals = [
            rows[other.key]
            for other in run.events
            if other.kind == "measured" and other.ended_s <= event.ended_s and other.key != event.key
        ]
        safer = [rival for rival in rivals if rival.meets(case) or not row.meets(case)]
        false += not any(surely_dominates(_bounds(case, rival), _bounds(case, row)) for rival in safer)
        truly += not any(dominates(rival.losses(case), row.losses(case)) for rival in safer)
    return false, truly


def _bounds(case: Case, row: Row) -> list[tuple[float, float]]:
    return [
        _interval(case, objective, loss)
        for objective, loss in zip(case.problem.objectives, row.losses(case), strict=True)
    ]


def _interval(case: Case, objective: Objective, loss: float) -> tuple[float, float]:
    width = _Z * math.hypot(case.cv, case.cv / 2, within(objective.metric))
    ends = loss * math.exp(-width), loss * math.exp(width)
    return min(ends), max(ends)
