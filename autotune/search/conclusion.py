"""What a confirmation shows: whether a finalist is better than the baseline, from the runs made for it alone (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from autotune.history.record import TrialRecord
from autotune.search.comparison import Compared, compare
from autotune.search.confirmation import (
    CANDIDATE_ROLES,
    baseline_of,
    kept,
    noise_of,
    this_round,
    value_of,
)
from autotune.search.survival import Survival, survival
from autotune.spec.config import EngineConfig
from autotune.spec.objective import Objective, Slo

Decision = Literal["better", "no clear winner", "keep the default"]

LEVEL = 0.95
"""Of every interval. In the first objective it holds for all finalists together: each gets its share of the error
(Bonferroni), or the best of several would be flattered again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """`gains` by metric, over the baseline. `search_gains`: what the search's own runs had promised. `rescues`: limits
    that the baseline misses and this one keeps beyond doubt. `stress`: None where it isn't known whether it survives
    peak load."""

    config: EngineConfig
    runs: int
    gains: Mapping[str, Compared]
    search_gains: Mapping[str, float]
    meets: bool
    rescues: tuple[Slo, ...] = ()
    stress: Survival | None = None

    @property
    def survived(self) -> bool:
        """True also where it isn't known."""
        return self.stress is None or self.stress.survived

    def shrinkage(self, metric: str) -> float | None:
        """Confirmed gain minus the search's: what chance had added, where it is negative (the winner's curse)."""
        if metric not in self.gains or metric not in self.search_gains:
            return None
        return self.gains[metric].gain - self.search_gains[metric]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """`winner` is given with "better" only. `finalists`: best first, by their confirmed gain. `fallen`: those that
    were better than the baseline but didn't survive. `between_run_cv` by metric, as estimated from all repeats."""

    decision: Decision
    baseline: EngineConfig
    baseline_runs: int
    baseline_meets: bool
    finalists: tuple[Finalist, ...]
    winner: Finalist | None = None
    fallen: tuple[Finalist, ...] = ()
    baseline_stress: Survival | None = None
    between_run_cv: Mapping[str, float] = field(default_factory=dict)


def conclude(records: Sequence[TrialRecord], objectives: Sequence[Objective], slos: Sequence[Slo]) -> Conclusion | None:
    """None where nothing was confirmed (yet).

    "better": a finalist keeps every limit, and the interval of its gain in the first objective lies above 0; or it
    keeps a limit that the baseline misses, by a difference that noise doesn't explain. And it isn't known to fail
    under stress. "keep the default": no finalist is left that could be better. "no clear winner": one could be, but the
    interval holds 0. A baseline that fails under stress keeps nobody from winning.
    """
    confirmed = this_round(records)
    baseline = baseline_of([r for r in records if r.role in CANDIDATE_ROLES])
    if not confirmed or baseline is None:
        return None
    groups: dict[str, list[TrialRecord]] = {}
    for record in confirmed:
        groups.setdefault(record.config.key, []).append(record)
    base = groups.pop(baseline.key, [])
    missed = [slo for slo in slos if not kept(base, [slo])]
    among = len(groups) * (1 + len(missed))
    finalists = [
        _finalist(group, base, baseline, records, objectives, slos, missed, among) for group in groups.values()
    ]
    first = objectives[0].metric
    finalists.sort(key=lambda f: -f.gains[first].gain if first in f.gains else float("inf"))
    better = [f for f in finalists if f.meets and (f.rescues or _above(f, first))]
    winner = next((f for f in better if f.survived), None)
    hopeful = [f for f in finalists if f.meets and f.survived and (first not in f.gains or f.gains[first].high > 0)]
    return Conclusion(
        decision="better" if winner else "no clear winner" if hopeful else "keep the default",
        baseline=baseline,
        baseline_runs=_valid(base, first),
        baseline_meets=kept(base, slos),
        finalists=tuple(finalists),
        winner=winner,
        fallen=tuple(f for f in better if not f.survived),
        baseline_stress=survival(base),
        between_run_cv={o.metric: s.cv for o in objectives if (s := noise_of(records, o.metric)) is not None},
    )


def _finalist(
    group: Sequence[TrialRecord],
    base: Sequence[TrialRecord],
    baseline: EngineConfig,
    records: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    slos: Sequence[Slo],
    missed: Sequence[Slo],
    among: int,
) -> Finalist:
    gains: dict[str, Compared] = {}
    promised: dict[str, float] = {}
    for objective in objectives:
        level = 1 - (1 - LEVEL) / among if objective == objectives[0] else LEVEL
        found = _compare(group, base, records, objective, level)
        if found is not None:
            gains[objective.metric] = found
            searched = [r for r in records if r.role in (*CANDIDATE_ROLES, "baseline")]
            new = _values([r for r in searched if r.config.key == group[0].config.key], objective.metric)
            old = _values([r for r in searched if r.config.key == baseline.key], objective.metric)
            if new and old and (mean := sum(old) / len(old)):
                promised[objective.metric] = objective.gain(sum(new) / len(new), mean)
    holds = kept(group, slos)
    rescues = []
    for slo in missed if holds else ():
        limited = Objective(metric=slo.metric, direction="maximize" if slo.at_least else "minimize")
        by = _compare(group, base, records, limited, 1 - (1 - LEVEL) / among)
        if by is not None and by.low > 0:
            rescues.append(slo)
    return Finalist(
        config=group[0].config,
        runs=_valid(group, objectives[0].metric),
        gains=gains,
        search_gains=promised,
        meets=holds,
        rescues=tuple(rescues),
        stress=survival(group),
    )


def _compare(
    group: Sequence[TrialRecord],
    base: Sequence[TrialRecord],
    records: Sequence[TrialRecord],
    objective: Objective,
    level: float,
) -> Compared | None:
    noise = noise_of(records, objective.metric)
    if noise is None:
        return None
    new, old = _values(group, objective.metric), _values(base, objective.metric)
    return compare(new, old, maximize=objective.direction == "maximize", noise=noise, level=level)


def _values(group: Sequence[TrialRecord], metric: str) -> list[float]:
    return [value for record in group if (value := value_of(record, metric)) is not None]


def _valid(group: Sequence[TrialRecord], metric: str) -> int:
    return len(_values(group, metric))


def _above(finalist: Finalist, metric: str) -> bool:
    return metric in finalist.gains and finalist.gains[metric].low > 0
