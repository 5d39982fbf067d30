"""Comparing configurations that were each run several times: spread between runs, and the interval of a gain (pure).

Everything is done with logarithms: runs differ by factors (a slower core, a fuller cache), and so do configurations.
The spread between runs is taken as equal in all configurations that are compared and pooled over them, because each has
only a handful of runs; Student's t pays for how little is known of it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """`cv`: standard deviation of the logarithms between runs of one configuration, about the relative one (0.05: 5 %).
    `df`: degrees of freedom that it rests on, at least 1."""

    cv: float
    df: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Of the true spread (chi-square, by Wilson and Hilferty's approximation)."""
        low, high = (_chi_square(self.df, p) for p in ((1 - level) / 2, (1 + level) / 2))
        return self.cv * math.sqrt(self.df / high), (self.cv * math.sqrt(self.df / low) if low > 0 else math.inf)

    def beside(self, prior_cv: float, *, prior_df: int) -> float:
        """The spread to count with while there are few repeats: a prior, worth `prior_df` of them, fades out."""
        return math.sqrt((prior_df * prior_cv**2 + self.df * self.cv**2) / (prior_df + self.df))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A relative gain, positive is better (0.1: 10 %), with the interval that holds it in `level` of all cases."""

    gain: float
    low: float
    high: float
    level: float
    runs: int
    baseline_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Relative change over the time between the first and the last run, with its 95 % interval."""

    change: float
    low: float
    high: float
    over_s: float

    @property
    def real(self) -> bool:
        return self.low > 0 or self.high < 0


def spread(groups: Iterable[Sequence[float]]) -> Spread | None:
    """Pooled over groups of runs, each of one configuration. None without two runs of one, or where a value isn't
    positive: it has no logarithm, and a relative spread means nothing beside 0."""
    squares, df = 0.0, 0
    for group in groups:
        if any(not value > 0 or math.isinf(value) for value in group):
            return None
        if len(group) > 1:
            logs = [math.log(value) for value in group]
            squares += statistics.variance(logs) * (len(logs) - 1)
            df += len(logs) - 1
    return Spread(cv=math.sqrt(squares / df), df=df) if df else None


def compare(
    new: Sequence[float], baseline: Sequence[float], *, maximize: bool, noise: Spread, level: float = 0.95
) -> Compared | None:
    """Of the geometric means. None where a value isn't positive, or a side has no run."""
    if not new or not baseline or any(not value > 0 or math.isinf(value) for value in (*new, *baseline)):
        return None
    ratio = statistics.fmean(map(math.log, new)) - statistics.fmean(map(math.log, baseline))
    half = student_t((1 + level) / 2, noise.df) * noise.cv * math.sqrt(1 / len(new) + 1 / len(baseline))
    ends = [_gain(end, maximize=maximize) for end in (ratio - half, ratio + half)]
    return Compared(
        gain=_gain(ratio, maximize=maximize),
        low=min(ends),
        high=max(ends),
        level=level,
        runs=len(new),
        baseline_runs=len(baseline),
    )


def drift(times_s: Sequence[float], values: Sequence[float]) -> Drift | None:
    """Least squares through the logarithms of runs of one configuration; None with fewer than 3 or without a span."""
    if len(values) < 3 or any(not value > 0 or math.isinf(value) for value in values):
        return None
    span = max(times_s) - min(times_s)
    if span <= 0:
        return None
    shares = [(time - min(times_s)) / span for time in times_s]
    logs = [math.log(value) for value in values]
    slope, start = statistics.linear_regression(shares, logs)
    df = len(logs) - 2
    rest = sum((y - start - slope * x) ** 2 for x, y in zip(shares, logs, strict=True)) / df
    middle = statistics.fmean(shares)
    error = math.sqrt(rest / sum((x - middle) ** 2 for x in shares))
    half = student_t(0.975, df) * error
    change, low, high = (math.expm1(min(end, 700.0)) for end in (slope, slope - half, slope + half))
    return Drift(change=change, low=low, high=high, over_s=span)


def student_t(p: float, df: int) -> float:
    """Quantile of Student's t, exact for 1 and 2 degrees of freedom, else to about four digits (G. W. Hill, 1970,
    "Algorithm 396: Student's t-quantiles"). Raises ValueError outside 0 < p < 1 or below 1 degree."""
    if not 0 < p < 1 or df < 1:
        raise ValueError(f"no t quantile for p={p}, df={df}")
    if p < 0.5:
        return -student_t(1 - p, df)
    tails = 2 * (1 - p)
    if df == 1:
        return 1 / math.tan(tails * math.pi / 2)
    if df == 2:
        return math.sqrt(2 / (tails * (2 - tails)) - 2)
    a = 1 / (df - 0.5)
    b = (48 / a) / a
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * df
    y = (d * tails) ** (2 / df)
    if y > 0.05 + a:
        x = _NORMAL.inv_cdf(tails / 2)
        y = x * x
        if df < 5:
            c += 0.3 * (df - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = ((1 / (((df + 6) / (df * y) - 0.089 * d - 0.822) * (df + 2) * 3) + 0.5 / (df + 4)) * y - 1) * (df + 1) / (
            df + 2
        ) + 1 / y
    return math.sqrt(df * y)


def _chi_square(df: int, p: float) -> float:
    return float(df * max(0.0, 1 - 2 / (9 * df) + _NORMAL.inv_cdf(p) * math.sqrt(2 / (9 * df))) ** 3)


def _gain(log_ratio: float, *, maximize: bool) -> float:
    """As `Objective.gain`; a ratio too large for a float is as large as floats go."""
    return math.expm1(min(log_ratio, 700.0)) if maximize else -math.expm1(min(log_ratio, 700.0))
