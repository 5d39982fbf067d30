"""When the requests of an open loop are due."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import assert_never

from autotune.load.draws import generator
from autotune.spec.trace import Trace
from autotune.spec.workload import (
    ClosedLoop,
    ConstantArrivals,
    GammaArrivals,
    Poisson,
    RampArrivals,
    Rung,
    TraceArrivals,
)

_AT_ONCE = 256


def arrival_times_s(rung: Rung, *, seed: int, trace: Trace | None = None) -> Iterator[float | None]:
    """Seconds since the rung began, never falling and without end; None for ever in a closed loop.

    Random gaps depend on the seed and the rung's name alone. Raises ValueError for a trace's arrivals without one.
    """
    match rung.arrivals:
        case ClosedLoop():
            yield from itertools.repeat(None)
        case Poisson(rate_rps=rate_rps):
            yield from itertools.accumulate(_gaps(rung, seed=seed, shape=1.0, mean_s=1.0 / rate_rps))
        case GammaArrivals(rate_rps=rate_rps, burstiness=shape):
            yield from itertools.accumulate(_gaps(rung, seed=seed, shape=shape, mean_s=1.0 / rate_rps))
        case ConstantArrivals(rate_rps=rate_rps):
            yield from (index / rate_rps for index in itertools.count())
        case RampArrivals() as ramp:
            for expected in itertools.accumulate(_gaps(rung, seed=seed, shape=1.0, mean_s=1.0)):
                yield _on_ramp(ramp, expected)
        case TraceArrivals(rate_scale=scale):
            if trace is None or not trace.has_times:
                raise ValueError("a trace's arrivals need a trace with times")
            times_s = [row.at_s or 0.0 for row in trace.rows]
            # Begun again, it comes with its own mean gap, not with two requests at once.
            period_s = times_s[-1] - times_s[0] + trace.mean_gap_s
            for cycle in itertools.count():
                yield from ((cycle * period_s + at_s - times_s[0]) / scale for at_s in times_s)
        case _:
            assert_never(rung.arrivals)


def _gaps(rung: Rung, *, seed: int, shape: float, mean_s: float) -> Iterator[float]:
    random = generator(seed, rung.name, "arrivals", 0)
    while True:
        if shape == 1.0:
            yield from random.exponential(mean_s, size=_AT_ONCE).tolist()
        else:
            yield from random.gamma(shape, mean_s / shape, size=_AT_ONCE).tolist()


def _on_ramp(ramp: RampArrivals, expected: float) -> float:
    """When `expected` requests have come on average: the inverse of the integral of the rate (a Poisson process of
    unit rate, its time stretched; Lewis and Shedler 1979)."""
    slope = (ramp.to_rps - ramp.from_rps) / ramp.over_s
    on_ramp = (ramp.from_rps + ramp.to_rps) / 2 * ramp.over_s
    if expected >= on_ramp:
        return ramp.over_s + (expected - on_ramp) / ramp.to_rps
    # from * t + slope * t^2 / 2 = expected, in the form that doesn't cancel where the slope is small
    return 2 * expected / (ramp.from_rps + math.sqrt(ramp.from_rps**2 + 2 * slope * expected))
