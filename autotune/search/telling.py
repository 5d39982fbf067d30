"""How each kind of verdict is told to the sampler. It decides whether the search avoids what can't run.

TPE never reads FAIL, so infeasible configurations told that way are suggested again and again; it does read PRUNED
trials with constraints, whose positive values it *sums* (optuna/samplers/_tpe/sampler.py).
Hence the scale: an engine that ran sums to less than 1, one that couldn't to 1 or more, so whatever ran ranks above
whatever didn't.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, assert_never

from autotune.spec.measurement import Measurement
from autotune.spec.objective import Objective, Slo
from autotune.spec.verdict import Broken, Dominated, Infeasible, Invalid, Measured, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """`values` in the order of the objectives, for a complete trial only; `constraints` are met where <= 0."""

    state: Literal["complete", "pruned", "fail"]
    values: tuple[float, ...] = ()
    constraints: Mapping[str, float] = field(default_factory=dict)
    why: str | None = None


RULE_BROKEN = Told(state="pruned", constraints={"rule": 1.0}, why="breaks a rule")
"""For a suggestion that was never launched: as an engine that can't start, nothing known about how far off it is."""


def told(verdict: Verdict, objectives: Sequence[Objective], slos: Sequence[Slo]) -> Told:
    match verdict:
        case Measured(measurement=measurement):
            values = [measurement.value(objective.metric) for objective in objectives]
            known = tuple(value for value in values if value is not None and math.isfinite(value))
            if len(known) < len(values):
                return Told(state="fail", why="an objective was not measured")
            return Told(state="complete", values=known, constraints=limits(measurement, slos, whole=True))
        case Infeasible(shortfall=shortfall, cause=cause):
            return Told(state="pruned", constraints={"feasible": 1.0 + min(1.0, max(0.0, shortfall))}, why=cause)
        case Dominated(measurement=measurement, by=by):
            seen = limits(measurement, slos, whole=False)
            return Told(state="pruned", constraints=seen, why=f"dominated by {', '.join(map(str, by))}")
        case Invalid(reasons=reasons):
            return Told(state="fail", why="; ".join(reasons))
        case Broken(error=error):
            return Told(state="fail", why=error)
        case _:
            assert_never(verdict)


def limits(measurement: Measurement, slos: Sequence[Slo], *, whole: bool) -> dict[str, float]:
    """v / (1 + v) per violated SLO, divided by their number, and one for lost requests (`meets` allows none).

    A limit that a `whole` trial didn't measure counts as missed by all of it (v = 1); one that a stopped trial didn't
    measure isn't mentioned. The positive values sum to less than 1.
    """
    constraints: dict[str, float] = {}
    for slo in slos:
        violation = slo.violation(measurement)
        if violation is None or math.isnan(violation):
            if not whole:
                continue
            violation = 1.0
        name = f"{slo.metric} {'>=' if slo.at_least else '<='} {slo.limit:g}"
        constraints[name] = violation if violation <= 0 else _share(violation) / len(slos)
    room = 1.0 - sum(value for value in constraints.values() if value > 0)
    lost = measurement.failed / max(measurement.failed + measurement.finished, 1)
    return constraints | {"failed": room * lost / 2}


def _share(violation: float) -> float:
    """[0, inf] to [0, 1), so that the sum over all SLOs stays below 1."""
    return min(violation / (1.0 + violation), 1.0 - 1e-9) if math.isfinite(violation) else 1.0 - 1e-9
