"""What a search measures again before it says anything, and in which order (pure).

The best of many single runs is flattered by chance. So the contenders, all that noise could have put behind the best
one, are run again (`screen`) where there are more of them than finalists; then the finalists and the baseline are run
in randomised blocks (`confirm`), and only those runs are compared (`search.conclusion`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from autotune.history.record import Role, TrialRecord
from autotune.search.comparison import Spread, spread
from autotune.search.survival import fallen
from autotune.spec.config import EngineConfig
from autotune.spec.measurement import Measurement
from autotune.spec.objective import Objective, Slo, meets
from autotune.spec.verdict import Infeasible, Measured

PRIOR_CV, PRIOR_DF = 0.05, 4
"""Spread between runs that is assumed before any is known, and how many repeats it is worth: CPU engines and shared
GPUs vary by about this much from one start to the next (docs/measurement.md)."""

FINALISTS, CONTENDERS = 2, 10
SCREEN_RUNS = 2
FEWEST_REPEATS, MOST_REPEATS = 3, 10
WORTH = 0.10
"""Gain in the first objective that the number of repeats is chosen for."""
CANDIDATE_ROLES: tuple[Role, ...] = ("default", "incumbent", "search")
REPEAT_EVERY = 8
"""Candidates between two repeats of the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """`screened` contenders run `SCREEN_RUNS` times each, then `finalists` and the baseline `repeats` times each."""

    screened: int
    finalists: int
    repeats: int

    @property
    def runs(self) -> int:
        return self.screened * SCREEN_RUNS + (1 + self.finalists) * self.repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One more run of a configuration. Those of a `block` follow each other and get the same traffic."""

    role: Literal["screen", "confirm"]
    config: EngineConfig
    block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is run next, in this order, and why, or why nothing is; one line for the user."""

    repeats: tuple[Repeat, ...]
    says: str


def next_step(
    records: Sequence[TrialRecord],
    objective: Objective,
    slos: Sequence[Slo],
    *,
    screened: bool,
    room: int,
    seed: int,
) -> Step:
    """Of a search whose last candidate has its verdict: screening, or (`screened`, or nothing to screen) the
    confirmation. `room`: runs that the budget has left for it."""
    baseline = baseline_of(records)
    cv = cv_of(records, objective.metric)
    found = contenders(records, objective, slos, cv=cv)
    plan = allot(runs=room, contenders=min(len(found), FINALISTS) if screened else len(found), cv=cv)
    if baseline is None or not found:
        return Step(repeats=(), says="nothing is confirmed: no candidate that keeps the limits beat the baseline")
    if plan is None:
        return Step(repeats=(), says="nothing is confirmed: the budget leaves no room")
    if plan.screened:
        return Step(
            repeats=blocks(found[: plan.screened], role="screen", repeats=SCREEN_RUNS, seed=seed),
            says=f"{plan.screened} contenders are measured again, {SCREEN_RUNS} times each",
        )
    arms = [*found[: plan.finalists], baseline]
    return Step(
        repeats=blocks(arms, role="confirm", repeats=plan.repeats, seed=seed),
        says=f"confirming: {plan.finalists} of the candidates and the baseline, {plan.repeats} times each",
    )


def baseline_repeats(candidates: int, trials: int | None) -> int:
    """How often the baseline should have been repeated once `candidates` were started, of `trials` in all.

    Once in `REPEAT_EVERY`, in the middle of them; twice where there are at least that many but fewer than two times as
    many; never in a shorter search. The confirmation repeats it at the end anyway.
    """
    if trials is not None and trials < REPEAT_EVERY:
        return 0
    every = min(REPEAT_EVERY, trials // 2) if trials is not None else REPEAT_EVERY
    return (candidates + every // 2) // every


def noise_of(records: Iterable[TrialRecord], metric: str) -> Spread | None:
    """Spread between runs of one configuration, from every configuration that was run again. The very first run of a
    search is left out: it also pays for files and caches that all later ones find warm."""
    groups: dict[tuple[str, str], list[float]] = {}
    for record in records:
        value = value_of(record, metric)
        if value is not None and record.role in ("baseline", "screen", "confirm"):
            phase = record.role if record.role == "confirm" else "search"
            groups.setdefault((phase, record.config.key), []).append(value)
    return spread(groups.values())


def cv_of(records: Sequence[TrialRecord], metric: str) -> float:
    """What to count with: measured as far as it is, `PRIOR_CV` for the rest."""
    known = noise_of(records, metric)
    return PRIOR_CV if known is None else known.beside(PRIOR_CV, prior_df=PRIOR_DF)


def value_of(record: TrialRecord, metric: str) -> float | None:
    """Of a measured record, if it is a number."""
    measurement = valid_measurement(record)
    value = None if measurement is None else measurement.value(metric)
    return value if value is not None and math.isfinite(value) else None


def valid_measurement(record: TrialRecord) -> Measurement | None:
    """Of a measured record, or of one whose engine died only in the stress that came after it."""
    match record.verdict:
        case Measured(measurement=measurement) | Infeasible(measurement=measurement):
            return measurement
        case _:
            return None


def this_round(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The runs that confirm the search as it stands: those begun after its last candidate. A search that goes on after
    its confirmation needs another."""
    newest = max((record.trial for record in records if record.role in CANDIDATE_ROLES), default=-1)
    return [record for record in records if record.role == "confirm" and record.trial > newest]


def baseline_of(records: Sequence[TrialRecord]) -> EngineConfig | None:
    """The default; where it has no valid run the incumbent, else the first configuration that was measured."""
    valid = [record for record in sorted(records, key=lambda r: r.trial) if isinstance(record.verdict, Measured)]
    for role in ("default", "incumbent"):
        for record in valid:
            if record.role == role:
                return record.config
    return valid[0].config if valid else None


def contenders(
    records: Sequence[TrialRecord], objective: Objective, slos: Sequence[Slo], *, cv: float
) -> tuple[EngineConfig, ...]:
    """Configurations that kept every limit, beat the baseline and may be the best one, the best first.

    "May be": within two standard errors of the difference of two runs. Where some were screened, only those are ranked,
    by their screening runs: the runs that chose them flatter them. What didn't survive being run again is out.
    """
    baseline = baseline_of(records)
    if baseline is None:
        return ()
    level = _mean(records, baseline, objective, roles=(*CANDIDATE_ROLES, "baseline"))
    newest = max(record.trial for record in records if record.role in CANDIDATE_ROLES)
    screened = [record for record in records if record.role == "screen" and record.trial > newest]
    runs: dict[str, list[TrialRecord]] = {}
    for record in screened or [r for r in records if r.role in CANDIDATE_ROLES]:
        runs.setdefault(record.config.key, []).append(record)
    out = fallen(records)
    gains: list[tuple[float, int, EngineConfig]] = []
    for key, group in runs.items():
        values = [v for record in group if (v := value_of(record, objective.metric)) is not None and v > 0]
        if key == baseline.key or key in out or not values or not kept(group, slos):
            continue
        gain = _log_mean(values) * (1 if objective.direction == "maximize" else -1)
        if screened or level is None or gain > level:
            gains.append((gain, group[0].trial, group[0].config))
    gains.sort(key=lambda entry: (-entry[0], entry[1]))
    reach = 2 * cv * math.sqrt(2)
    return tuple(config for gain, _, config in gains if gain >= gains[0][0] - reach)


def allot(*, runs: int, contenders: int, cv: float) -> Allotment | None:
    """The best use of at most `runs` runs; None where they aren't enough for an interval, or there is no contender."""
    if contenders == 0 or runs < 4:
        return None
    if runs < 2 * FEWEST_REPEATS:
        return Allotment(screened=0, finalists=1, repeats=2)
    finalists = min(contenders, FINALISTS, runs // FEWEST_REPEATS - 1)
    spare = runs - (1 + finalists) * FEWEST_REPEATS
    screened = min(contenders, CONTENDERS, spare // SCREEN_RUNS)
    if screened <= finalists or contenders <= finalists:
        screened = 0
    spare -= screened * SCREEN_RUNS
    return Allotment(
        screened=screened,
        finalists=finalists,
        repeats=min(repeats_for(cv), FEWEST_REPEATS + spare // (1 + finalists)),
    )


def repeats_for(cv: float) -> int:
    """Runs of each that find a gain of `WORTH` in about nine of ten cases: the interval (about 2.7 standard errors) and
    1.3 more."""
    needed = 2 * (4.0 * cv / math.log1p(WORTH)) ** 2
    return min(MOST_REPEATS, max(FEWEST_REPEATS, math.ceil(needed)))


def blocks(
    configs: Sequence[EngineConfig], *, role: Literal["screen", "confirm"], repeats: int, seed: int
) -> tuple[Repeat, ...]:
    """Each configuration once per block, in random order: whatever drifts, drifts for all of them. The same one never
    runs twice in a row where there are others."""
    rng = np.random.default_rng([abs(seed), 0xC0F1, len(configs)])
    order: list[Repeat] = []
    for block in range(repeats):
        shuffled = [configs[index] for index in rng.permutation(len(configs))]
        if order and len(configs) > 1 and shuffled[0].key == order[-1].config.key:
            shuffled = [*shuffled[1:], shuffled[0]]
        order += [Repeat(role=role, config=config, block=block) for config in shuffled]
    assert len(configs) < 2 or all(a.config.key != b.config.key for a, b in pairwise(order))
    return tuple(order)


def kept(group: Iterable[TrialRecord], slos: Sequence[Slo]) -> bool:
    """Whether these runs, their values averaged, keep every limit and lost no request."""
    measurements = [m for record in group if (m := valid_measurement(record)) is not None]
    if not measurements or any(m.failed for m in measurements):
        return False
    if len(measurements) == 1:
        return meets(slos, measurements[0])
    for slo in slos:
        violations = [slo.violation(m) for m in measurements]
        known = [v for v in violations if v is not None and math.isfinite(v)]
        if not known or statistics.fmean(known) > 0:
            return False
    return True


def _mean(
    records: Sequence[TrialRecord], config: EngineConfig, objective: Objective, *, roles: Sequence[Role]
) -> float | None:
    """Mean logarithm, turned so that larger is better."""
    found = [value_of(r, objective.metric) for r in records if r.config.key == config.key and r.role in roles]
    values = [value for value in found if value is not None and value > 0]
    return _log_mean(values) * (1 if objective.direction == "maximize" else -1) if values else None


def _log_mean(values: Sequence[float]) -> float:
    return statistics.fmean(map(math.log, values))
