"""How the finalists and the baseline bore peak load, in words and as JSON values."""

from __future__ import annotations

from typing import Any

from autotune.report.evidence import one_line
from autotune.report.numbers import number, percent, plural
from autotune.report.summary import Summary
from autotune.search.conclusion import Finalist
from autotune.search.survival import Survival
from autotune.spec.config import EngineConfig


def stress_lines(summary: Summary) -> tuple[str, ...]:
    """One line for each that was confirmed, the finalists first: "trial 7: stress: 40 at once, ...". Empty where none
    was put under any."""
    found = summary.confirmation
    if found is None:
        return ()
    arms = [*((f.config, f.stress) for f in found.finalists), (found.baseline, found.baseline_stress)]
    if all(seen is None for _, seen in arms):
        return ()
    return tuple(
        f"{_name(config, summary)}: {'stress: not run' if seen is None else stress_line(seen)}" for config, seen in arms
    )


def stress_line(seen: Survival) -> str:
    """ "stress: 40 at once, 80 requests, all answered, KV cache seen up to 97 % full, 3 preemptions". Seen: in
    readings a second apart."""
    measured = seen.measurement
    if measured is None:
        return f"stress: not reached, the engine died of {_cause(seen)}"
    parts = [] if measured.concurrency is None else [f"{measured.concurrency:,} at once"]
    if seen.died_of is not None:
        parts.append(f"the engine died of {_cause(seen)} after {plural(measured.finished, 'answer')}")
    else:
        parts.append(plural(measured.requests, "request"))
        parts.append(f"{seen.unanswered:,} of them unanswered" if seen.unanswered else "all answered")
    if measured.kv_cache_usage_max is not None:
        parts.append(f"KV cache seen up to {100 * measured.kv_cache_usage_max:.0f} % full")
    if measured.preemptions is not None:
        parts.append(plural(measured.preemptions, "preemption"))
    return f"stress: {', '.join(parts)}"


def fallen(summary: Summary) -> tuple[str, ...]:
    """A sentence for each finalist that was better and didn't survive: why it isn't the winner."""
    found = summary.confirmation
    return tuple(_fell(finalist, summary) for finalist in found.fallen) if found else ()


def untested(summary: Summary) -> tuple[str, ...]:
    """A sentence where the winner's survival isn't known, and one where the baseline itself didn't survive."""
    found = summary.confirmation
    if found is None:
        return ()
    said = []
    if found.winner is not None and found.winner.stress is None:
        said.append("Whether it survives peak load was not tested.")
    if found.baseline_stress is not None and not found.baseline_stress.survived:
        name = _name(found.baseline, summary)
        said.append(f"{name[0].upper()}{name[1:]} itself did not survive: {_why(found.baseline_stress)}.")
    return tuple(said)


def stress_form(seen: Survival | None) -> dict[str, Any] | None:
    """None where no stress was run."""
    if seen is None:
        return None
    measured = seen.measurement
    return {
        "survived": seen.survived,
        "died_of": seen.died_of,
        "concurrency": measured.concurrency if measured else None,
        "requests": measured.requests if measured else None,
        "unanswered": seen.unanswered,
        "kv_cache_usage_max": measured.kv_cache_usage_max if measured else None,
        "preemptions": measured.preemptions if measured else None,
        "text": stress_line(seen),
    }


def _fell(finalist: Finalist, summary: Summary) -> str:
    assert finalist.stress is not None
    metric = summary.objectives[0].metric
    gain = finalist.gains.get(metric)
    what = f"was better ({percent(gain.gain)} in {metric})" if gain and gain.gain > 0 else "kept more SLOs"
    name = _name(finalist.config, summary)
    return f"{name[0].upper()}{name[1:]} {what}, but {_why(finalist.stress)}."


def _why(seen: Survival) -> str:
    at_once = seen.measurement.concurrency if seen.measurement else None
    load = "" if at_once is None else f" under peak load: {number(at_once)} requests at once"
    if seen.died_of is not None:
        return f"its engine died of {one_line(seen.died_of, 60)}{load or ' when it was run again'}"
    return f"it left {plural(seen.unanswered, 'request')} unanswered{load}"


def _cause(seen: Survival) -> str:
    evidence = f" ({one_line(seen.evidence, 160)})" if seen.evidence else ""
    return f"{one_line(seen.died_of or '', 60)}{evidence}"


def _name(config: EngineConfig, summary: Summary) -> str:
    tried = next((tried for tried in summary.tried if tried.config.key == config.key), None)
    return "the baseline" if tried is None else summary.name_of(tried)
