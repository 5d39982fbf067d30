"""A configuration that was measured, with all of its valid runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.history.record import TrialRecord
from autotune.spec.config import EngineConfig
from autotune.spec.measurement import Measurement
from autotune.spec.objective import Objective, Slo
from autotune.spec.verdict import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """`runs` are at least one, all Measured, of the same effective configuration; the first names it.

    Values are those of the runs that `count`: of a configuration that was measured again because its first run looked
    good, that first run would only flatter it.
    """

    runs: tuple[TrialRecord, ...]

    @property
    def trial(self) -> int:
        return self.runs[0].trial

    @property
    def config(self) -> EngineConfig:
        return self.runs[0].config

    @property
    def count(self) -> tuple[TrialRecord, ...]:
        """The runs of its confirmation, else of its screening, else all; but the search's very first run only where it
        is the only one, as it pays for caches that all later ones find filled."""
        for role in ("confirm", "screen"):
            if again := tuple(run for run in self.runs if run.role == role):
                return again
        return tuple(run for run in self.runs if run.trial > 0) or self.runs

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Of the last reference rung, one per run that counts."""
        return tuple(run.measurement for run in self.count if run.measurement is not None)

    @property
    def failed_requests(self) -> int:
        return sum(m.failed for m in self.measurements)

    def values(self, metric: str) -> tuple[float, ...]:
        """One per run that measured it. NaN and infinities say nothing and are left out: none may reach a front.
        Raises KeyError for a name that is no metric."""
        found = (m.value(metric) for m in self.measurements)
        return tuple(value for value in found if value is not None and math.isfinite(value))

    def mean(self, metric: str) -> float | None:
        values = self.values(metric)
        return statistics.fmean(values) if values else None

    def loss(self, objective: Objective) -> float | None:
        """The mean, turned so that smaller is better."""
        mean = self.mean(objective.metric)
        if mean is None:
            return None
        return -mean if objective.direction == "maximize" else mean

    def violation(self, slo: Slo) -> float | None:
        """Of the mean over the runs (a violation is linear in the value); None when no run measured it."""
        found = [v for m in self.measurements if (v := slo.violation(m)) is not None and math.isfinite(v)]
        return statistics.fmean(found) if found else None

    def meets(self, slos: Sequence[Slo]) -> bool:
        """Every limit measured and kept, and no request lost in any run."""
        violations = [self.violation(slo) for slo in slos]
        return not self.failed_requests and all(v is not None and v <= 0 for v in violations)


def pooled(records: Iterable[TrialRecord]) -> tuple[Tried, ...]:
    """The measured records, those of one configuration together, in the order in which each was first tried."""
    runs: dict[str, list[TrialRecord]] = {}
    for record in records:
        if isinstance(record.verdict, Measured):
            runs.setdefault(record.config.key, []).append(record)
    return tuple(Tried(runs=tuple(same)) for same in runs.values())
