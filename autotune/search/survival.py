"""Whether a configuration survived its confirmation: peak load with margin, and every start before it (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.history.record import TrialRecord
from autotune.spec.measurement import Measurement
from autotune.spec.verdict import Infeasible, Measured
from autotune.spec.workload import STRESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """`measurement`: of the stress, as far as it got; None where the engine died in a run without one. `died_of`: the
    cause, with its `evidence`, where the engine did."""

    measurement: Measurement | None
    died_of: str | None = None
    evidence: str = ""

    @property
    def unanswered(self) -> int:
        """Requests that failed, or were still without an end when the stress had to stop."""
        return 0 if self.measurement is None else self.measurement.requests - self.measurement.finished

    @property
    def survived(self) -> bool:
        return self.died_of is None and not self.unanswered


def survival(runs: Sequence[TrialRecord]) -> Survival | None:
    """Of one configuration's runs, the worst that was seen; None where no engine died and none was put under stress.

    Runs that say nothing about the configuration (broken, invalid, cut short) don't count.
    """
    seen: list[Survival] = []
    for run in runs:
        stress = next((m for m in run.measurements if m.rung == STRESS), None)
        match run.verdict:
            case Infeasible(cause=cause, evidence=evidence):
                seen.append(Survival(measurement=stress, died_of=cause, evidence=evidence))
            case Measured() if stress is not None:
                seen.append(Survival(measurement=stress))
            case _:
                pass
    return max(seen, key=lambda one: (one.died_of is not None, one.unanswered), default=None)


def fallen(records: Iterable[TrialRecord]) -> frozenset[str]:
    """Keys of the configurations that didn't survive being run again: their engine died, or the stress left requests
    unanswered."""
    again: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.role in ("screen", "confirm"):
            again.setdefault(record.config.key, []).append(record)
    seen = {key: survival(runs) for key, runs in again.items()}
    return frozenset(key for key, one in seen.items() if one is not None and not one.survived)
