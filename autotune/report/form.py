"""What a run showed, as plain JSON values: the answers of `vtune search`, `status`, `report` and `best` (docs/cli.md).

Keys are a contract: adding one is fine, renaming or removing one raises the `schema_version` of the answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from autotune.report.evidence import REDACTED, is_secret_name, one_line
from autotune.report.gain import Gain
from autotune.report.outcome import KeepBaseline, NoneMeetsSlos, NothingValid, Switch, outcome, sentence
from autotune.report.stress import stress_form
from autotune.report.study import Study
from autotune.report.summary import Summary
from autotune.report.tried import Tried
from autotune.spec.config import FlagValue
from autotune.spec.measurement import METRICS
from autotune.spec.objective import Slo


def study_form(study: Study) -> dict[str, Any]:
    """Everything a program needs to act on a run."""
    summary = study.summary
    best = summary.best
    return {
        "run": str(study.path),
        "name": study.header.name,
        "state": study.state,
        "message": one_line(study.header.message, 1000),
        "verdict": sentence(summary),
        "outcome": _outcome(summary),
        "trials": summary.trials,
        "verdicts": dict(summary.verdicts),
        "repeats": summary.repeats,
        "objectives": [{"metric": o.metric, "direction": o.direction} for o in summary.objectives],
        "slos": [slo_form(slo) for slo in summary.slos],
        "default": tried_form(summary.default, study),
        "default_failure": summary.default_failure,
        "incumbent": tried_form(summary.incumbent, study),
        "baseline_trial": summary.baseline.trial if summary.baseline else None,
        "best": tried_form(best, study),
        "best_by_slo": [
            {"slo": slo_form(slo), "trial": tried.trial if tried else None} for slo, tried in summary.best_by_slo
        ],
        "gains": [gain_form(gain) for gain in summary.gains],
        "confirmation": confirmation_form(summary),
        "front": [tried_form(tried, study) for tried in summary.front],
        "near_front": [tried.trial for tried in summary.near_front],
        "failures": [
            {"verdict": f.verdict, "cause": f.cause, "trials": list(f.trials), "evidence": f.evidence}
            for f in summary.failures
        ],
        "gpu_s": spending_form(study),
        "seed": study.header.seed,
        "versions": dict(study.header.versions),
        "environment": {node: dict(facts) for node, facts in study.environment.items()},
        "started_at": study.header.started_at,
        "finished_at": study.header.finished_at,
    }


def tried_form(tried: Tried | None, study: Study) -> dict[str, Any] | None:
    """One configuration; `metrics` are means over its runs, only those that were measured."""
    if tried is None:
        return None
    metrics = {metric: finite(value) for metric in METRICS if (value := tried.mean(metric)) is not None}
    return {
        "trial": tried.trial,
        "runs": len(tried.count),
        "role": tried.runs[0].role,
        "model": tried.config.model,
        "flags": flags_form(tried.config.flags),
        "gpus": tried.config.gpus,
        "meets_slos": tried.meets(study.summary.slos),
        "failed_requests": tried.failed_requests,
        "metrics": metrics,
        "command": study.command(tried).shell(),
    }


def flags_form(flags: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """Values as they are, except a secret's."""
    return {name: REDACTED if is_secret_name(name) else value for name, value in flags.items() if value is not None}


def gain_form(gain: Gain) -> dict[str, Any]:
    """`gain` and `noise` are shares (0.25 is 25 %); positive gain is better in either direction."""
    return {
        "metric": gain.objective.metric,
        "direction": gain.objective.direction,
        "best": finite(gain.new),
        "baseline": finite(gain.old),
        "gain": finite(gain.value),
        "noise": finite(gain.noise),
        "standing": gain.standing,
        "runs": gain.runs,
        "baseline_runs": gain.baseline_runs,
        "confirmed": gain.confirmed,
        "interval": None if gain.interval is None else [finite(end) for end in gain.interval],
        "promised": finite(gain.promised),
    }


def confirmation_form(summary: Summary) -> dict[str, Any] | None:
    """None where nothing was confirmed. Gains are shares; intervals hold at 95 %, in the first objective for all
    finalists together."""
    found = summary.confirmation
    if found is None:
        return None
    trials = {tried.config.key: tried.trial for tried in summary.tried}
    return {
        "conclusion": found.decision,
        "winner": trials.get(found.winner.config.key) if found.winner else None,
        "baseline_runs": found.baseline_runs,
        "baseline_stress": stress_form(found.baseline_stress),
        "between_run_cv": {metric: finite(cv) for metric, cv in found.between_run_cv.items()},
        "finalists": [
            {
                "trial": trials.get(finalist.config.key),
                "runs": finalist.runs,
                "meets_slos": finalist.meets,
                "stress": stress_form(finalist.stress),
                "gains": [
                    {
                        "metric": metric,
                        "gain": finite(gain.gain),
                        "interval": [finite(gain.low), finite(gain.high)],
                        "promised": finite(finalist.search_gains.get(metric)),
                        "shrinkage": finite(finalist.shrinkage(metric)),
                    }
                    for metric, gain in finalist.gains.items()
                ],
            }
            for finalist in found.finalists
        ],
    }


def slo_form(slo: Slo) -> dict[str, Any]:
    return {"metric": slo.metric, "limit": slo.limit, "at_least": slo.at_least}


def spending_form(study: Study) -> dict[str, Any]:
    """`split` and `shares` are of `offered`, devices x wall seconds; the rest is what trials booked."""
    spending, books = study.summary.spending, study.gpu_books
    return {
        "devices": books.devices,
        "wall_s": books.wall_s,
        "offered": finite(books.total_gpu_s),
        "split": {use: finite(gpu_s) for use, gpu_s in books.split.items()},
        "shares": {use: finite(books.share(use)) for use in books.split},
        "total": spending.total_gpu_s,
        "by_use": dict(spending.by_use),
        "by_verdict": dict(spending.by_verdict),
        "engine_starts": spending.engine_starts,
        "engines_reused": spending.engines_reused,
        "mean_start_s": finite(spending.mean_start_s),
    }


def finite(value: float | None) -> float | None:
    """JSON has neither NaN nor infinity: both are "not known"."""
    return value if value is not None and math.isfinite(value) else None


def _outcome(summary: Summary) -> str:
    match outcome(summary):
        case NothingValid():
            return "nothing-valid"
        case NoneMeetsSlos():
            return "none-meets-slos"
        case KeepBaseline():
            return "keep-baseline"
        case Switch():
            return "switch"
