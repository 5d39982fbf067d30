from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.arrivals import arrival_times_s
from autotune.spec.trace import Trace, TraceRequest
from autotune.spec.workload import (
    Arrivals,
    ConstantArrivals,
    GammaArrivals,
    Poisson,
    RampArrivals,
    Rung,
    TraceArrivals,
)


def times_s(arrivals: Arrivals, count: int, *, seed: int = 1, trace: Trace | None = None) -> list[float]:
    rung = Rung(name="r", arrivals=arrivals, requests=count)
    return [at_s or 0.0 for at_s in itertools.islice(arrival_times_s(rung, seed=seed, trace=trace), count)]


def gap_cv(times: list[float]) -> float:
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return statistics.stdev(gaps) / statistics.mean(gaps)


def trace_at(*times: float) -> Trace:
    rows = tuple(TraceRequest(at_s=at_s, prompt_tokens=1, output_tokens=1, line=1) for at_s in times)
    return Trace(file="t", format="azure", rows=rows)


rates = st.floats(min_value=0.01, max_value=1000)
any_arrivals = st.one_of(
    st.builds(Poisson, rate_rps=rates),
    st.builds(GammaArrivals, rate_rps=rates, burstiness=st.floats(min_value=0.05, max_value=20)),
    st.builds(ConstantArrivals, rate_rps=rates),
    st.builds(RampArrivals, from_rps=rates, to_rps=rates, over_s=st.floats(min_value=0.1, max_value=1000)),
)


@given(any_arrivals, st.integers())
def test_arrivals_never_go_back_and_the_seed_decides_them(arrivals: Arrivals, seed: int) -> None:
    times = times_s(arrivals, 40, seed=seed)
    assert times == sorted(times) and times[0] >= 0
    assert times_s(arrivals, 40, seed=seed) == times


@pytest.mark.parametrize("rate", [0.02, 0.5, 40.0])
@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_arrivals_keep_their_rate_and_burstiness(rate: float, burstiness: float) -> None:
    times = times_s(GammaArrivals(rate_rps=rate, burstiness=burstiness), 8000)
    assert times[-1] == pytest.approx(8000 / rate, rel=0.08)
    assert gap_cv(times) == pytest.approx(burstiness**-0.5, rel=0.08)


def test_constant_arrivals_are_as_far_apart_as_their_rate_says() -> None:
    assert times_s(ConstantArrivals(rate_rps=0.5), 4) == [0, 2, 4, 6]


@pytest.mark.parametrize(("first", "last"), [(1.0, 9.0), (9.0, 1.0), (5.0, 5.0)])
def test_a_ramp_goes_from_one_rate_to_the_other_and_stays_there(first: float, last: float) -> None:
    ramp = RampArrivals(from_rps=first, to_rps=last, over_s=1000)
    times = times_s(ramp, 8000)
    early, late, after = (sum(start <= at_s < start + 100 for at_s in times) / 100 for start in (0, 900, 1000))
    assert early == pytest.approx(first + (last - first) * 0.05, abs=0.8)
    assert late == pytest.approx(first + (last - first) * 0.95, abs=0.8)
    assert after == pytest.approx(last, abs=0.8)


@given(st.lists(st.floats(min_value=0, max_value=1e4), min_size=2, max_size=20), st.floats(min_value=0.1, max_value=50))
def test_a_traces_times_are_its_own_divided_by_the_rate_scale(gaps: list[float], scale: float) -> None:
    at_s = [0.0, *itertools.accumulate(gaps)]
    replayed = times_s(TraceArrivals(rate_scale=scale), len(at_s), trace=trace_at(*at_s))
    assert replayed == pytest.approx([one / scale for one in at_s])


def test_a_trace_begins_again_with_its_mean_gap_in_between() -> None:
    assert times_s(TraceArrivals(), 6, trace=trace_at(0, 1, 4)) == [0, 1, 4, 6, 7, 10]


def test_a_trace_keeps_its_bursts() -> None:
    bursts = [second * 10.0 for second in range(20) for _ in range(5)]
    replayed = times_s(TraceArrivals(rate_scale=2), 100, trace=trace_at(*bursts))
    assert gap_cv(replayed) == pytest.approx(gap_cv(bursts))


def test_a_traces_arrivals_without_a_trace_are_refused() -> None:
    with pytest.raises(ValueError, match="need a trace"):
        times_s(TraceArrivals(), 1)
