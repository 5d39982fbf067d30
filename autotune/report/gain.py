"""How much better one configuration is than another, and whether run-to-run noise could explain it.

Where the search ended with a confirmation, only its runs count (`search.conclusion`); elsewhere a gain is held against
the spread of the baseline's repeats.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from autotune.report.tried import Tried
from autotune.search.comparison import student_t
from autotune.search.conclusion import Finalist
from autotune.spec.objective import Objective

Standing = Literal["better", "worse", "within noise", "unconfirmed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Of the means of `runs` runs over those of `baseline_runs`, in one objective; positive is better, 0.25 is 25 %.

    `noise` is the half-width of the 95 % interval of `value`, from the baseline's run-to-run spread; None when
    the baseline ran once. `standing` says "better" or "worse" only where the interval excludes 0. A `confirmed` gain
    has its own `interval` (in the first objective it holds for all finalists together), and `promised`: what the
    search's runs had said, flattered by chance.
    """

    objective: Objective
    new: float
    old: float
    value: float
    runs: int
    baseline_runs: int
    noise: float | None
    interval: tuple[float, float] | None = None
    promised: float | None = None

    @property
    def confirmed(self) -> bool:
        return self.interval is not None

    @property
    def shrinkage(self) -> float | None:
        """Confirmed gain minus the promised one; negative where chance had flattered it (the winner's curse)."""
        return None if self.promised is None or not self.confirmed else self.value - self.promised

    @property
    def standing(self) -> Standing:
        if self.interval is not None:
            low, high = self.interval
            return "better" if low > 0 else "worse" if high < 0 else "within noise"
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


def confirmed_gains(
    finalist: Finalist, new: Tried, baseline: Tried, objectives: Sequence[Objective]
) -> tuple[Gain, ...]:
    """One per objective that the confirmation could compare. `new` and `baseline` hold its runs alone."""
    found = []
    for objective in objectives:
        compared = finalist.gains.get(objective.metric)
        value, old = new.mean(objective.metric), baseline.mean(objective.metric)
        if compared is None or value is None or old is None:
            continue
        found.append(
            Gain(
                objective=objective,
                new=value,
                old=old,
                value=compared.gain,
                runs=compared.runs,
                baseline_runs=compared.baseline_runs,
                noise=max(compared.high - compared.gain, compared.gain - compared.low),
                interval=(compared.low, compared.high),
                promised=finalist.search_gains.get(objective.metric),
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
    t = student_t(0.975, len(baseline) - 1)  # a normal quantile would promise far too much from a handful of repeats
    return t * spread * abs(ratio) * math.sqrt(1 / len(baseline) + 1 / runs)
