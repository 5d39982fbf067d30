"""Which rate to try next on the way to the highest one that keeps the SLOs, and when that rate is known (pure).

Rates are doubled or halved until one keeps the limits and one doesn't, then the gap is halved (in logarithms) until it
is narrow enough. One rung may be lucky: the two rates that the answer rests on are run again before it is believed, and
where two rungs disagree a third decides.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.load.intervals import rank
from autotune.spec.measurement import Measurement, RequestRecord
from autotune.spec.objective import Slo, meets
from autotune.spec.workload import GoodputSearch, Rung

_STEP = 2.0
_VOTES = 2
"""Rungs that an end of the answer rests on."""
_MOST_VOTES = 3
_LOWEST = 1 / 32
"""Of the first rate: below it an engine isn't worth looking at, and a rung of so few requests a second takes long."""
_GROWTH, _LUCK = 1.5, 3.0
_FIRST = 20
STAYS = 4.0
"""How many times a request's stay a rung lasts at least: until the first are done, an engine only fills."""
_FIGURES = ("goodput_rps", "goodput_rps_per_gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One rung of the search: whether the limits held at this rate. One that isn't `usable` (its client was late, say)
    still sends the search to lower rates, but no answer rests on it."""

    rate_rps: float
    held: bool
    measurement: Measurement
    usable: bool = True


def limits(slos: Iterable[Slo]) -> tuple[Slo, ...]:
    """Those a rate can break by being too high. A lower limit on throughput is broken by every low rate."""
    return tuple(slo for slo in slos if not slo.at_least)


def holds(slos: Sequence[Slo], measurement: Measurement, *, behind: bool) -> bool:
    """Whether this rate can be served within the limits: an engine that falls `behind` breaks them sooner or later."""
    return not behind and meets(limits(slos), measurement)


def next_rate(search: GoodputSearch, tried: Sequence[Tried], *, guess_rps: float) -> float | None:
    """None when the search is over. `guess_rps`: where it begins, unless the workload says where."""
    if len(tried) >= search.most_rungs:
        return None
    if not tried:
        return search.start_rps or guess_rps
    votes = _votes(tried)
    for rate, (kept, broke) in votes.items():
        if kept == broke and kept + broke < _MOST_VOTES:
            return rate
    low, high = bracket(tried)
    if high is None:
        assert low is not None, "every rate held or didn't"
        return low * _STEP
    if low is None:
        return high / _STEP if high > _LOWEST * tried[0].rate_rps else None
    if high / low > 1 + search.precision:
        return math.sqrt(low * high)
    return next((rate for rate in (low, high) if sum(votes[rate]) < _VOTES), None)


def bracket(tried: Sequence[Tried]) -> tuple[float | None, float | None]:
    """The highest rate that held below the lowest that didn't, and that one. None where there is none."""
    votes = _votes(tried)
    high = min((rate for rate, (kept, broke) in votes.items() if broke >= kept), default=None)
    below = [rate for rate, (kept, broke) in votes.items() if kept > broke and (high is None or rate < high)]
    return max(below, default=None), high


def with_goodput(reference: Measurement, tried: Sequence[Tried]) -> Measurement:
    """The trial's measurement with what the search found: 0 where even its lowest rate didn't hold, nothing (None)
    where no rung could be used. The interval is between the two rates that the answer lies between; without one the
    answer is a lower bound.
    """
    if not any(one.usable for one in tried):
        return reference
    low, high = bracket(tried)
    intervals = dict(reference.intervals)
    if high is not None and any(one.usable for one in tried if one.rate_rps == high):
        intervals["max_rate_within_slo_rps"] = (low or 0.0, high)
    there = [one.measurement for one in tried if one.rate_rps == low and one.held]
    for name in _FIGURES:
        ends = [m.intervals[name] for m in there if name in m.intervals]
        if ends:
            intervals[name] = (min(end[0] for end in ends), max(end[1] for end in ends))
    return replace(
        reference,
        max_rate_within_slo_rps=low or 0.0,
        goodput_rps=_mean(m.goodput_rps for m in there) if there else 0.0,
        goodput_rps_per_gpu=_mean(m.goodput_rps_per_gpu for m in there) if there else 0.0,
        intervals=intervals,
    )


def without_goodput(measurement: Measurement) -> Measurement:
    """A reference rung's own goodput is another figure than the search's: it must not stand in its place."""
    intervals = {name: ends for name, ends in measurement.intervals.items() if name not in _FIGURES}
    return replace(measurement, intervals=intervals, goodput_rps=None, goodput_rps_per_gpu=None)


def hopeless(rung: Rung, records: Sequence[RequestRecord], slos: Sequence[Slo], *, rate_rps: float) -> bool:
    """Whether a limit on a percentile is broken whatever the requests to come show, so that the rung can end early.

    Nearest rank: a p99 of n requests is above its limit as soon as more than n - ceil(0.99 n) are.
    """
    if any(record.error is not None for record in records):
        return True
    requests = max(rung.requests, len(records), math.ceil(1.5 * rate_rps * rung.duration_s))
    for slo in limits(slos):
        family, _, percentile = slo.metric.removesuffix("_ms").rpartition("_p")
        if family not in ("ttft", "e2e"):
            continue
        allowed = requests - 1 - rank(int(percentile) / 100, requests)
        over = sum(
            (latency_ms := _latency_ms(record, family)) is not None and latency_ms > slo.limit for record in records
        )
        if over > allowed:
            return True
    return False


def stay_s(reference: Measurement, tried: Sequence[Tried], rate_rps: float) -> float:
    """How long a request stays at about this rate: the median of the nearest rate that held, else the reference rung's.
    Where requests pile up they stay for as long as the rung lasts, which says nothing. 0 where neither says."""
    known = [one for one in tried if one.held and one.measurement.e2e_p50_ms is not None]
    nearest = min(known, key=lambda one: abs(math.log(one.rate_rps / rate_rps)), default=None)
    e2e_ms = (nearest.measurement if nearest else reference).e2e_p50_ms
    return (e2e_ms or 0.0) / 1e3


def falls_behind(records: Sequence[RequestRecord], *, until_s: float) -> bool:
    """Whether requests pile up: at this rate every limit would be broken if the rung only lasted long enough.

    In flight in the last third of the sending against its first, once it has filled (as long as the first requests
    stayed, before any piled up): half as many again and more than luck. A rung that hardly outlasts that doesn't tell.
    """
    first_sent = sorted((r for r in records if r.done_s is not None), key=lambda r: r.scheduled_s)[:_FIRST]
    if until_s <= 0 or not first_sent:
        return False
    ramp_s = float(np.median([(record.done_s or 0.0) - record.scheduled_s for record in first_sent]))
    if until_s - ramp_s < ramp_s:
        return False
    sent_s = np.array([record.scheduled_s for record in records])
    done_s = np.array([math.inf if record.done_s is None else record.done_s for record in records])
    third_s = (until_s - ramp_s) / 3
    first, last = (
        float(np.mean([np.sum((sent_s <= at_s) & (done_s > at_s)) for at_s in np.linspace(begin, end, 25)]))
        for begin, end in ((ramp_s, ramp_s + third_s), (until_s - third_s, until_s))
    )
    return last > _GROWTH * first + _LUCK * math.sqrt(max(first, 1.0))


def _votes(tried: Sequence[Tried]) -> dict[float, tuple[int, int]]:
    """Per rate: rungs that kept the limits, rungs that didn't."""
    votes: defaultdict[float, list[int]] = defaultdict(lambda: [0, 0])
    for one in tried:
        votes[one.rate_rps][0 if one.held else 1] += 1
    return {rate: (kept, broke) for rate, (kept, broke) in votes.items()}


def _latency_ms(record: RequestRecord, family: str) -> float | None:
    end_s = record.first_token_s if family == "ttft" else record.done_s
    return None if end_s is None else 1e3 * (end_s - record.scheduled_s)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
