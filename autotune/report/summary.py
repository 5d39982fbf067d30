"""What a search found, computed from its records alone: baseline, front, best, gains, failures and the books.

Pure. Runs of the same configuration are pooled (`Tried`); a gain is held against the run-to-run noise of the
baseline's repeats, and where there are none it is called unconfirmed rather than real.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from autotune.history.record import TrialRecord
from autotune.report.evidence import one_line, shown_flags
from autotune.report.gain import Gain, confirmed_gains, gains
from autotune.report.tried import Tried, pooled
from autotune.search.comparison import Drift, drift
from autotune.search.conclusion import Conclusion, conclude
from autotune.search.confirmation import CANDIDATE_ROLES, noise_of, this_round
from autotune.search.dominance import front as front_of
from autotune.search.dominance import noisy_front
from autotune.search.survival import Survival, fallen, survival
from autotune.spec.config import EngineConfig
from autotune.spec.objective import Objective, Slo
from autotune.spec.verdict import Books, Broken, Dominated, Infeasible, Invalid, Measured, verdict_name


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Trials that ended for the same reason. `evidence` is one cleaned line, from the first of them."""

    verdict: str
    cause: str
    trials: tuple[int, ...]
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """GPU-seconds that trials booked, by what they were spent on and by the verdict they bought. Every attempt counts.

    `mean_start_s`: seconds from the launch of an engine until it serves, of those that got so far; None where none did.
    """

    total_gpu_s: float
    by_use: Mapping[str, float]
    by_verdict: Mapping[str, float]
    engine_starts: int
    engines_reused: int
    mean_start_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRun:
    """The search's very first run beside the mean of the `runs` later ones of the same configuration, in the first
    objective. `change`: from then to later, relative."""

    first: float
    later: float
    runs: int

    @property
    def change(self) -> float:
        return self.later / self.first - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """`baseline` is what gains are stated against: the default; where it has no valid run the incumbent, else the
    first configuration that was measured. `best` meets every SLO and is best in the first objective; None when none
    does, and `closest` is then the configuration that misses by least. `best_by_slo` looks at each limit alone. What
    didn't survive being run again (`search.survival`) is none of these, except for the baseline.
    `verdicts` counts candidates by how their last attempt ended, `repeats` the further runs of the baseline, the
    contenders and the finalists.

    Where the search confirmed its finalists, `confirmation` decides: `best` is its winner (else the baseline, if that
    keeps the limits), and `gains` are those of the winner or the nearest finalist, from the confirmation's runs alone.
    `drift`: of the first objective, over the baseline's runs but the very first. `near_front`: off the front, but noise
    could have put it there; empty while the noise isn't known.
    """

    objectives: tuple[Objective, ...]
    slos: tuple[Slo, ...]
    records: tuple[TrialRecord, ...]
    tried: tuple[Tried, ...]
    verdicts: Mapping[str, int]
    default: Tried | None
    default_config: EngineConfig | None
    default_failure: str | None
    incumbent: Tried | None
    baseline: Tried | None
    front: tuple[Tried, ...]
    best: Tried | None
    best_by_slo: tuple[tuple[Slo, Tried | None], ...]
    closest: Tried | None
    gains: tuple[Gain, ...]
    failures: tuple[FailureGroup, ...]
    spending: Spending
    confirmation: Conclusion | None = None
    drift: Drift | None = None
    first_run: FirstRun | None = None
    repeats: int = 0
    near_front: tuple[Tried, ...] = ()

    def flags_of(self, tried: Tried) -> str:
        """What a reader needs to know of its flags: those that differ from the default's."""
        beside = self.default_config
        if beside is None or tried.config.key == beside.key:
            return shown_flags(tried.config.flags)
        shown = shown_flags(tried.config.flags, beside=beside.flags)
        return shown if tried.config.model == beside.model else f"model={one_line(tried.config.model, 120)}, {shown}"

    @property
    def trials(self) -> int:
        """Candidates that were tried, a retried one counted once."""
        return sum(self.verdicts.values())

    def stress_of(self, tried: Tried) -> Survival | None:
        """How it bore peak load at the end of a confirmation; None where it wasn't put under any."""
        key = tried.config.key
        return survival([r for r in self.records if r.config.key == key and r.role in ("screen", "confirm")])

    def name_of(self, tried: Tried) -> str:
        """What a reader calls it: the default, the incumbent, or its trial number."""
        if tried is self.default:
            return "the default"
        return "the incumbent" if tried is self.incumbent else f"trial {tried.trial}"

    def gains_of(self, tried: Tried) -> tuple[Gain, ...]:
        """Of any configuration over the baseline; empty when there is no baseline."""
        return gains(tried, self.baseline, self.objectives) if self.baseline else ()


def summarise(
    records: Iterable[TrialRecord],
    objectives: Sequence[Objective],
    slos: Sequence[Slo] = (),
    *,
    use_confirmation: bool = True,
) -> Summary:
    """Needs at least one objective. The order of `records` doesn't matter. `use_confirmation` False: for limits that
    its finalists weren't chosen by."""
    ordered = tuple(sorted(records, key=lambda record: (record.trial, record.attempt)))
    last = {record.trial: record for record in ordered}
    tried = pooled(ordered)
    default = _with_role(tried, "default")
    incumbent = _with_role(tried, "incumbent")
    baseline = default or incumbent or (tried[0] if tried else None)
    out = fallen(ordered)
    standing = [t for t in tried if t is baseline or t.config.key not in out]
    meeting = [t for t in standing if t.meets(slos)]
    best = best_of(meeting, objectives[0])
    front = _front(tried, objectives)
    confirmation = conclude(ordered, objectives, slos) if use_confirmation else None
    stated = gains(best, baseline, objectives) if best and baseline else ()
    if confirmation is not None and baseline is not None:
        best = _confirmed_best(confirmation, tried, baseline, best)
        stated = _confirmed_gains(confirmation, ordered, objectives, best=best) or (
            gains(best, baseline, objectives) if best else ()
        )
    return Summary(
        objectives=tuple(objectives),
        slos=tuple(slos),
        records=ordered,
        tried=tried,
        verdicts=Counter(verdict_name(r.verdict) for r in last.values() if r.role in CANDIDATE_ROLES),
        repeats=sum(record.role not in CANDIDATE_ROLES for record in last.values()),
        default=default,
        default_config=next((record.config for record in ordered if record.role == "default"), None),
        default_failure=None if default else _why_no_default(last.values()),
        incumbent=incumbent,
        baseline=baseline,
        front=front,
        best=best,
        best_by_slo=tuple((slo, best_of([t for t in standing if t.meets([slo])], objectives[0])) for slo in slos),
        closest=None if best else _closest(standing, slos),
        gains=stated,
        failures=_failures(last.values()),
        spending=_spending(ordered),
        confirmation=confirmation,
        drift=_drift(baseline, objectives[0]) if baseline else None,
        first_run=_first_run(baseline, objectives[0]) if baseline else None,
        near_front=_near_front(tried, ordered, objectives, on=front),
    )


def _confirmed_best(
    confirmation: Conclusion, tried: Sequence[Tried], baseline: Tried, searched: Tried | None
) -> Tried | None:
    """The winner; without one the baseline where it keeps the limits, else the first finalist that does, else what the
    search alone would say."""
    if confirmation.winner is None and confirmation.baseline_meets:
        return baseline
    chosen = confirmation.winner or next((f for f in confirmation.finalists if f.meets and f.survived), None)
    return searched if chosen is None else next(t for t in tried if t.config.key == chosen.config.key)


def _confirmed_gains(
    confirmation: Conclusion, records: Sequence[TrialRecord], objectives: Sequence[Objective], *, best: Tried | None
) -> tuple[Gain, ...]:
    """Of the finalist that is `best`; where that is the baseline, of the one that came nearest and survived."""
    key = best.config.key if best else None
    kept = key == confirmation.baseline.key
    shown = next((f for f in confirmation.finalists if (kept and f.survived) or f.config.key == key), None)
    runs = {t.config.key: t for t in pooled(this_round(records))}
    if shown is None or shown.config.key not in runs or confirmation.baseline.key not in runs:
        return ()
    return confirmed_gains(shown, runs[shown.config.key], runs[confirmation.baseline.key], objectives)


def _drift(baseline: Tried, objective: Objective) -> Drift | None:
    """The very first run of a search is left out: it pays for what all later ones find warm."""
    valued = [
        (run.started_at, value)
        for run in baseline.runs
        if run.trial > 0 and run.measurement and (value := run.measurement.value(objective.metric)) is not None
    ]
    return drift([at for at, _ in valued], [value for _, value in valued])


def _first_run(baseline: Tried, objective: Objective) -> FirstRun | None:
    """None where the baseline wasn't what the search began with, or never ran again."""
    valued = [
        (run.trial, value)
        for run in baseline.runs
        if run.measurement and (value := run.measurement.value(objective.metric)) is not None and value > 0
    ]
    later = [value for trial, value in valued if trial > 0]
    first = next((value for trial, value in valued if trial == 0), None)
    if first is None or not later:
        return None
    return FirstRun(first=first, later=statistics.fmean(later), runs=len(later))


def best_of(candidates: Sequence[Tried], objective: Objective) -> Tried | None:
    """Best mean in `objective`; the earlier trial wins a tie. None when none has a value."""
    valued = [(loss, t.trial, t) for t in candidates if (loss := t.loss(objective)) is not None]
    return min(valued, key=lambda entry: entry[:2])[2] if valued else None


def _with_role(tried: Sequence[Tried], role: str) -> Tried | None:
    return next((t for t in tried if any(run.role == role for run in t.runs)), None)


def _front(tried: Sequence[Tried], objectives: Sequence[Objective]) -> tuple[Tried, ...]:
    """Best in the first objective on top. A configuration that lost requests or lacks a value can't be on it."""
    known: list[tuple[tuple[float, ...], Tried]] = []
    for t in tried:
        losses = [loss for objective in objectives if (loss := t.loss(objective)) is not None]
        if not t.failed_requests and len(losses) == len(objectives):
            known.append((tuple(losses), t))
    chosen = [known[index] for index in front_of([losses for losses, _ in known])]
    return tuple(t for _, t in sorted(chosen, key=lambda entry: (entry[0], entry[1].trial)))


def _near_front(
    tried: Sequence[Tried], records: Sequence[TrialRecord], objectives: Sequence[Objective], *, on: Sequence[Tried]
) -> tuple[Tried, ...]:
    """What no other dominates for sure, each value taken within two standard deviations between runs."""
    noises = [noise_of(records, objective.metric) for objective in objectives]
    bounds: dict[int, list[tuple[float, float]]] = {}
    for index, t in enumerate(tried):
        losses = [t.loss(objective) for objective in objectives]
        if t.failed_requests or any(loss is None for loss in losses) or any(noise is None for noise in noises):
            continue
        widths = [2 * noise.cv / math.sqrt(len(t.count)) for noise in noises if noise is not None]
        bounds[index] = [
            (loss - abs(loss) * -math.expm1(-width), loss + abs(loss) * math.expm1(width))
            for loss, width in zip((loss for loss in losses if loss is not None), widths, strict=True)
        ]
    there = {t.trial for t in on}
    return tuple(tried[index] for index in noisy_front(bounds) if tried[index].trial not in there)


def _closest(tried: Sequence[Tried], slos: Sequence[Slo]) -> Tried | None:
    """Least worst violation; configurations that lost requests or miss a value come last."""

    def distance(t: Tried) -> tuple[bool, float, int]:
        violations = [t.violation(slo) for slo in slos]
        known = [v for v in violations if v is not None]
        return (bool(t.failed_requests) or len(known) < len(violations), max(known, default=0.0), t.trial)

    return min(tried, key=distance, default=None)


def _why_no_default(last: Iterable[TrialRecord]) -> str | None:
    record = next((record for record in last if record.role == "default"), None)
    if record is None:
        return None
    cause, evidence = _reason(record)
    return f"{verdict_name(record.verdict)}: {cause}" + (f" ({evidence})" if evidence else "")


def _failures(last: Iterable[TrialRecord]) -> tuple[FailureGroup, ...]:
    """Most frequent first. A dominated trial is no failure."""
    grouped: dict[tuple[str, str], list[TrialRecord]] = defaultdict(list)
    for record in last:
        if not isinstance(record.verdict, Measured | Dominated):
            grouped[verdict_name(record.verdict), _reason(record)[0]].append(record)
    groups = [
        FailureGroup(
            verdict=verdict, cause=cause, trials=tuple(r.trial for r in members), evidence=_reason(members[0])[1]
        )
        for (verdict, cause), members in grouped.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-len(group.trials), group.cause)))


def _reason(record: TrialRecord) -> tuple[str, str]:
    """(cause, evidence), both cleaned."""
    match record.verdict:
        case Infeasible(cause=cause, evidence=evidence):
            return one_line(cause, 80), one_line(evidence)
        case Broken(cause=cause, error=error):
            return one_line(cause, 80), one_line(error)
        case Invalid(reasons=reasons):
            return one_line(reasons[0], 120) if reasons else "unknown", one_line("; ".join(reasons[1:]))
        case Measured() | Dominated():
            return "", ""


def _spending(records: Sequence[TrialRecord]) -> Spending:
    uses = [field.name for field in fields(Books)]
    starts_s = [r.books.start_s for r in records if not r.engine_reused and r.books.start_s > 0]
    by_verdict: Counter[str] = Counter()
    for record in records:
        by_verdict[verdict_name(record.verdict)] += record.gpu_s  # type: ignore[assignment]  # a Counter of floats
    return Spending(
        total_gpu_s=sum(record.gpu_s for record in records),
        by_use={use.removesuffix("_s"): sum(r.gpus * getattr(r.books, use) for r in records) for use in uses},
        by_verdict=dict(by_verdict),
        engine_starts=sum(not record.engine_reused for record in records),
        engines_reused=sum(record.engine_reused for record in records),
        mean_start_s=statistics.fmean(starts_s) if starts_s else None,
    )
