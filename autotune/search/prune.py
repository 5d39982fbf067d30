"""Whether a running trial can still win. It is stopped only if even an optimist must give it up.

Three things make a trial look worse than it is, and each is allowed for: the luck of its requests (the measurement's
95 % intervals), the luck of the run (between-run variation of one configuration), and looking again and again until one
look is bad (the error is spent over the looks: alpha_k = alpha * 6 / (pi k)^2, which sums to alpha over all of them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

from autotune.spec.measurement import Measurement
from autotune.spec.objective import Objective, Slo
from autotune.spec.verdict import Dominated

FALSE_STOPS = 0.01
"""Chance, per trial, that one that no front member really beats is stopped."""

_NORMAL = NormalDist()
_INTERVAL_Z = 1.96


def decide(
    snapshot: Measurement,
    front: Sequence[tuple[int, Measurement]],
    objectives: Sequence[Objective],
    slos: Sequence[Slo],
    *,
    looks: int,
    between_run_cv: float | Callable[[str], float],
    minimum: tuple[int, float],
) -> Dominated | None:
    """None: let it run. `looks` counts the decisions on this trial from 1, this one included.

    `minimum`: finished requests and seconds of load before which nothing is decided, ramp-up within them. Only
    complete measurements of the same rung count as front. A value or interval that is missing never stops a trial.
    `between_run_cv`: of every metric, or a function of the metric's name.
    """
    if snapshot.finished < minimum[0] or snapshot.duration_s < minimum[1]:
        return None
    rivals = [(number, m) for number, m in front if m.rung == snapshot.rung and m.complete and m.failed == 0]
    if not rivals or not objectives:
        return None
    cv_of = between_run_cv if callable(between_run_cv) else _always(between_run_cv)
    z = critical(looks=looks, rivals=len(rivals))
    by = tuple(
        number
        for number, rival in rivals
        if all(_surely_worse(snapshot, rival, objective, z, cv_of(objective.metric)) for objective in objectives)
        and all(_no_safer(snapshot, rival, slo, z, cv_of(slo.metric)) for slo in slos)
    )
    return Dominated(by=by, measurement=snapshot) if by else None


def _always(cv: float) -> Callable[[str], float]:
    return lambda _: cv


def critical(*, looks: int, rivals: int) -> float:
    """Standard errors that a gap must exceed at this look, against this many rivals."""
    alpha = FALSE_STOPS * 6 / (math.pi * looks) ** 2
    return -_NORMAL.inv_cdf(alpha / rivals)


def _surely_worse(mine: Measurement, rival: Measurement, objective: Objective, z: float, between_run_cv: float) -> bool:
    """My optimist still loses to the rival's pessimist, each z standard errors away.

    The error of the difference would be smaller, but the front that is reported has whatever no interval surely beats
    (`dominance.noisy_front`): what is stopped must not be a member of it.
    """
    better_is_lower = objective.direction == "minimize"
    one, other = objective.loss(mine), objective.loss(rival)
    my_error = _error(mine, objective.metric, low_side=better_is_lower, between_run_cv=between_run_cv)
    rival_error = _error(rival, objective.metric, low_side=not better_is_lower, between_run_cv=between_run_cv)
    if one is None or other is None or my_error is None or rival_error is None:
        return False
    return one - other > z * (my_error + rival_error)


def _no_safer(mine: Measurement, rival: Measurement, slo: Slo, z: float, between_run_cv: float) -> bool:
    """The rival keeps this limit, or even my optimist breaks it: else I might be the one that serves within it."""
    theirs = slo.violation(rival)
    if theirs is not None and theirs <= 0:
        return True
    value = mine.value(slo.metric)
    error = _error(mine, slo.metric, low_side=not slo.at_least, between_run_cv=between_run_cv)
    if value is None or error is None:
        return False
    return value + z * error < slo.limit if slo.at_least else value - z * error > slo.limit


def _error(measurement: Measurement, metric: str, *, low_side: bool, between_run_cv: float) -> float | None:
    """Standard error on one side, of the requests and of the run together; None without an interval."""
    value, interval = measurement.value(metric), measurement.intervals.get(metric)
    if value is None or interval is None or not math.isfinite(value):
        return None
    side = value - interval[0] if low_side else interval[1] - value
    return math.hypot(max(0.0, side) / _INTERVAL_Z, between_run_cv * value)
