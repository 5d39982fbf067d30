"""How much better one configuration is than another, and whether run-to-run noise could explain it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from autotune.report.tried import Tried
from autotune.spec.objective import Objective

Standing = Literal["better", "worse", "within noise", "unconfirmed"]

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; later ones use the last (too wide, never
# too narrow). The noise is estimated from a handful of repeats, so a normal quantile would promise far too much.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Of the means of `runs` runs over those of `baseline_runs`, in one objective; positive is better, 0.25 is 25 %.

    `noise` is the half-width of the 95 % interval of `value`, from the baseline's run-to-run spread; None when
    the baseline ran once. `standing` says "better" or "worse" only where the interval excludes 0.
    """

    objective: Objective
    new: float
    old: float
    value: float
    runs: int
    baseline_runs: int
    noise: float | None

    @property
    def standing(self) -> Standing:
        if self.noise is None:
            return "unconfirmed"
        if abs(self.value) <= self.noise:
            return "within noise"
        return "better" if self.value > 0 else "worse"


def gains(new: Tried, baseline: Tried, objectives: Sequence[Objective]) -> tuple[Gain, ...]:
    """One per objective that both have measured (and that isn't 0 at the baseline)."""
    found = []
    for objective in objectives:
        value, old = new.mean(objective.metric), baseline.mean(objective.metric)
        if value is None or not old:
            continue
        olds, news = baseline.values(objective.metric), new.values(objective.metric)
        found.append(
            Gain(
                objective=objective,
                new=value,
                old=old,
                value=objective.gain(value, old),
                runs=len(news),
                baseline_runs=len(olds),
                noise=_noise(olds, len(news), ratio=value / old),
            )
        )
    return tuple(found)


def relative_spread(values: Sequence[float]) -> float | None:
    """Standard deviation between runs / mean; None with fewer than two runs or a mean of 0."""
    if len(values) < 2 or not (mean := statistics.fmean(values)):
        return None
    return statistics.stdev(values) / abs(mean)


def _noise(baseline: Sequence[float], runs: int, *, ratio: float) -> float | None:
    """Half-width of the interval of `ratio` = new mean / baseline mean, taking the relative spread as equal in both."""
    spread = relative_spread(baseline)
    if spread is None:
        return None
    t = _T_95[min(len(baseline) - 2, len(_T_95) - 1)]
    return t * spread * abs(ratio) * math.sqrt(1 / len(baseline) + 1 / runs)
