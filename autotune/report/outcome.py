"""What a summary means for the person who has to decide: switch, stay, or look again. And the sentence for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from autotune.report.gain import Gain
from autotune.report.numbers import limit, number, percent, plural
from autotune.report.stress import fallen, untested
from autotune.report.summary import Summary
from autotune.report.tried import Tried
from autotune.spec.objective import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingValid:
    """No trial gave a valid measurement."""

    trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoneMeetsSlos:
    """`missed` are the limits that the closest configuration breaks, with the relative excess (None: not measured)."""

    closest: Tried
    missed: tuple[tuple[Slo, float | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBaseline:
    """Nothing that meets the SLOs beats what is in use; `gain` is of the best candidate where noise explains it.
    `confirmed`: a confirmation said so, `gain` is its (of the finalist that came nearest); `no_clear_winner`: that
    finalist may be better, the interval doesn't tell."""

    baseline: Tried
    gain: Gain | None = None
    confirmed: bool = False
    no_clear_winner: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """`best` beats the baseline, or meets SLOs that the baseline misses (`rescues`)."""

    best: Tried
    baseline: Tried
    gain: Gain | None
    rescues: bool


Outcome = NothingValid | NoneMeetsSlos | KeepBaseline | Switch


def outcome(summary: Summary) -> Outcome:
    baseline, best = summary.baseline, summary.best
    if baseline is None:
        return NothingValid(trials=summary.trials)
    if best is None:
        closest = summary.closest or baseline
        violations = ((slo, closest.violation(slo)) for slo in summary.slos)
        return NoneMeetsSlos(closest=closest, missed=tuple((s, v) for s, v in violations if v is None or v > 0))
    first = next((gain for gain in summary.gains if gain.objective == summary.objectives[0]), None)
    confirmation = summary.confirmation
    if confirmation is not None and (confirmation.winner is not None or confirmation.baseline_meets):
        if confirmation.winner is not None:
            return Switch(best=best, baseline=baseline, gain=first, rescues=bool(confirmation.winner.rescues))
        unclear = confirmation.decision == "no clear winner"
        told = first if first is not None and first.confirmed else None
        return KeepBaseline(baseline=baseline, gain=told, confirmed=True, no_clear_winner=unclear)
    if best.config.key == baseline.config.key:
        return KeepBaseline(baseline=baseline)
    if not baseline.meets(summary.slos):
        return Switch(best=best, baseline=baseline, gain=first, rescues=True)
    if first is not None and first.standing == "within noise":
        return KeepBaseline(baseline=baseline, gain=first)
    if first is not None and first.value <= 0:
        return KeepBaseline(baseline=baseline)
    return Switch(best=best, baseline=baseline, gain=first, rescues=False)


def sentence(summary: Summary) -> str:
    """The verdict in a few plain sentences, with how sure it is and what kept a better one from winning."""
    return " ".join((_verdict(summary), *fallen(summary), *untested(summary)))


def _verdict(summary: Summary) -> str:
    decided = outcome(summary)
    match decided:
        case NothingValid(trials=trials):
            return f"No valid measurement: none of {plural(trials, 'trial')} gave one."
        case NoneMeetsSlos(closest=closest, missed=missed):
            by = "; ".join(f"{limit(slo)} {_excess(violation)}" for slo, violation in missed)
            lost = f"{plural(closest.failed_requests, 'request')} failed" if closest.failed_requests else ""
            why = "; ".join(part for part in (by, lost) if part)
            return f"No configuration met every SLO. The closest is trial {closest.trial}: {why}."
        case KeepBaseline(baseline=baseline, gain=gain, confirmed=True, no_clear_winner=unclear):
            kept = f"{'No clear winner: keep' if unclear else 'Keep'} {summary.name_of(baseline)}"
            if gain is None and fallen(summary):
                return f"{kept}."
            if gain is None:
                return f"{kept}. The finalists' repeated runs gave nothing to compare."
            again = f"Run again, the best finalist's gain in {_first(summary)} is {percent(gain.value)}"
            return f"{kept}. {again}{_between(gain)}. {confidence(gain)}"
        case KeepBaseline(baseline=baseline, gain=gain):
            kept = f"Keep {summary.name_of(baseline)}"
            if gain is None:
                return f"{kept}: nothing tried that meets the SLOs is better in {_first(summary)}."
            return (
                f"{kept}: the best candidate's {percent(gain.value)} in {_first(summary)} is inside the run-to-run "
                f"noise (± {100 * (gain.noise or 0):.1f} % at 95 %)."
            )
        case Switch(best=best, baseline=baseline, gain=gain, rescues=rescues):
            where = f"{summary.name_of(baseline)}"
            change = f"instead of {where}"
            if gain is not None:
                change = f"{percent(gain.value)}{_between(gain)} in {_first(summary)} against {where}"
            also = f", and it meets the SLOs, which {where} does not" if rescues else ""
            return f"Trial {best.trial}: {change}{also}. {confidence(gain)}"
        case _:
            assert_never(decided)


def confidence(gain: Gain | None) -> str:
    """How far a gain can be trusted, in words."""
    if gain is None:
        return "There is no gain to state: the baseline has no value to compare with."
    if gain.confirmed:
        promised = f"; single runs had promised {percent(gain.promised)}" if gain.promised is not None else ""
        return f"Confirmed by {plural(gain.runs, 'run')} of it and {gain.baseline_runs} of the baseline{promised}."
    match gain.standing:
        case "unconfirmed":
            runs = "one run each" if gain.runs == gain.baseline_runs == 1 else "the baseline ran once"
            return (
                f"{runs[0].upper()}{runs[1:]}, not yet confirmed: the best of many single runs is flattered by chance."
            )
        case "within noise":
            return f"That is inside the run-to-run noise (± {100 * (gain.noise or 0):.1f} % at 95 %)."
        case "better" | "worse":
            return (
                f"Run-to-run noise explains at most ± {100 * (gain.noise or 0):.1f} % (95 %, "
                f"{plural(gain.baseline_runs, 'baseline run')}, {plural(gain.runs, 'run')} of this one)."
            )


def trade_off(summary: Summary) -> tuple[str, ...]:
    """One line for each later objective in which another point of the front beats what `sentence` recommends."""
    here = summary.best or summary.baseline
    if here is None:
        return ()
    lines = []
    for objective in summary.objectives[1:]:
        others = [t for t in summary.front if t.meets(summary.slos) and t is not here]
        mine = here.mean(objective.metric)
        if mine is None or not others:
            continue
        other = min(others, key=lambda t: (t.loss(objective) or 0.0, t.trial))
        theirs = other.mean(objective.metric)
        if theirs is not None and mine and objective.gain(theirs, mine) > 0:
            lines.append(
                f"Best in {objective.metric}: trial {other.trial}, {number(theirs)} against {number(mine)} "
                f"({percent(objective.gain(theirs, mine))})."
            )
    return tuple(lines)


def _first(summary: Summary) -> str:
    return summary.objectives[0].metric


def _between(gain: Gain) -> str:
    """The 95 % interval of a confirmed gain, in brackets."""
    if gain.interval is None:
        return ""
    return f" ({percent(gain.interval[0])} to {percent(gain.interval[1])} at 95 %)"


def _excess(violation: float | None) -> str:
    return "was not measured" if violation is None else f"is missed by {100 * violation:.0f} %"
