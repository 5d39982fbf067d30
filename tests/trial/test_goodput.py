"""The highest rate within the SLOs: which rates are tried, when it is known, and what a trial says of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from autotune.engine.simulated import SimulatedLauncher
from autotune.load.simulated import SimulatedLoader
from autotune.spec.config import EngineConfig
from autotune.spec.measurement import Measurement, RequestRecord
from autotune.spec.objective import Slo
from autotune.spec.verdict import Measured
from autotune.spec.workload import ClosedLoop, FixedLength, GoodputSearch, Poisson, RequestShape, Rung, Workload
from autotune.trial.climb import Outcome, climb
from autotune.trial.goodput import (
    Tried,
    bracket,
    falls_behind,
    holds,
    hopeless,
    next_rate,
    stay_s,
    with_goodput,
    without_goodput,
)

TTFT = Slo(metric="ttft_p99_ms", limit=200.0)
SEARCH = GoodputSearch(requests=200)


NOTHING = Measurement(rung="goodput 1", complete=True, duration_s=1.0, requests=200, finished=200, failed=0, gpus=1)


def measured(**figures: float) -> Measurement:
    return replace(NOTHING, **figures)  # type: ignore[arg-type]  # metrics are floats


def searched(held: Callable[[float], bool], search: GoodputSearch, *, guess_rps: float) -> list[Tried]:
    tried: list[Tried] = []
    while (rate := next_rate(search, tried, guess_rps=guess_rps)) is not None:
        tried.append(Tried(rate_rps=rate, held=held(rate), measurement=measured(goodput_rps=0.9 * rate)))
    return tried


@pytest.mark.parametrize("limit_rps", [0.07, 0.9, 7.3, 41.0, 512.0])
@pytest.mark.parametrize("off", [0.2, 1.0, 4.0])
def test_the_rate_is_found_wherever_it_begins(limit_rps: float, off: float) -> None:
    tried = searched(lambda rate: rate <= limit_rps, SEARCH, guess_rps=off * limit_rps)
    low, high = bracket(tried)
    assert low is not None and high is not None
    assert low <= limit_rps < high <= 1.1 * low
    assert len(tried) <= SEARCH.most_rungs
    assert sum(one.rate_rps == low for one in tried) == 2, "one rung may be lucky"
    assert sum(one.rate_rps == high for one in tried) == 2


def test_it_begins_where_the_workload_says() -> None:
    assert next_rate(replace(SEARCH, start_rps=3.0), [], guess_rps=50.0) == 3.0


def test_a_lucky_rung_is_found_out() -> None:
    lucky = iter([True])

    def held(rate: float) -> bool:
        return rate <= 10.0 or (rate < 12.5 and next(lucky, False))

    tried = searched(held, replace(SEARCH, most_rungs=20), guess_rps=12.0)
    assert [one.rate_rps for one in tried if one.held and one.rate_rps > 10.0] == [12.0]
    low, high = bracket(tried)
    assert low is not None and high is not None and low <= 10.0 < high


def test_an_engine_that_keeps_no_limit_is_given_up_on_and_has_goodput_0() -> None:
    tried = searched(lambda rate: False, replace(SEARCH, most_rungs=40), guess_rps=8.0)
    assert len(tried) <= 8
    assert min(one.rate_rps for one in tried) >= 8.0 / 64
    shown = with_goodput(measured(ttft_p99_ms=900.0), tried)
    assert (shown.max_rate_within_slo_rps, shown.goodput_rps) == (0.0, 0.0)
    assert shown.intervals["max_rate_within_slo_rps"] == (0.0, min(one.rate_rps for one in tried))


def test_rates_that_all_held_are_a_lower_bound_without_an_interval() -> None:
    tried = searched(lambda rate: True, replace(SEARCH, most_rungs=4), guess_rps=1.0)
    shown = with_goodput(measured(), tried)
    assert shown.max_rate_within_slo_rps == 8.0
    assert "max_rate_within_slo_rps" not in shown.intervals


def test_only_its_own_figures_come_from_the_search() -> None:
    reference = replace(
        measured(ttft_p99_ms=120.0, output_tok_per_s=500.0, goodput_rps=3.0),
        rung="busy",
        intervals={"goodput_rps": (2.0, 4.0), "output_tok_per_s": (490.0, 510.0)},
    )
    assert without_goodput(reference).goodput_rps is None
    assert without_goodput(reference).intervals == {"output_tok_per_s": (490.0, 510.0)}
    tried = searched(lambda rate: rate < 10, SEARCH, guess_rps=6.0)
    shown = with_goodput(without_goodput(reference), tried)
    low, high = bracket(tried)
    assert low is not None
    assert (shown.rung, shown.ttft_p99_ms, shown.output_tok_per_s) == ("busy", 120.0, 500.0)
    assert shown.max_rate_within_slo_rps == low
    assert shown.goodput_rps == pytest.approx(0.9 * low)
    assert shown.intervals["max_rate_within_slo_rps"] == (low, high)


def test_no_usable_rung_leaves_nothing_said() -> None:
    assert with_goodput(measured(), []).max_rate_within_slo_rps is None


def test_a_rung_that_can_t_be_used_turns_the_search_back_but_is_no_end_of_the_answer() -> None:
    """From 12 requests a second the client is late; the engine's own limit isn't reached."""
    tried: list[Tried] = []
    while (rate := next_rate(SEARCH, tried, guess_rps=10.0)) is not None:
        tried.append(Tried(rate_rps=rate, held=rate < 12, usable=rate < 12, measurement=measured(goodput_rps=rate)))
    shown = with_goodput(measured(), tried)
    assert shown.max_rate_within_slo_rps is not None and 10.0 <= shown.max_rate_within_slo_rps < 12
    assert "max_rate_within_slo_rps" not in shown.intervals
    assert with_goodput(measured(), [replace(tried[-1], usable=False)]).max_rate_within_slo_rps is None


def test_a_lower_limit_on_throughput_is_not_held_against_a_low_rate() -> None:
    slos = (TTFT, Slo(metric="output_tok_per_s", limit=1e6, at_least=True))
    assert holds(slos, measured(ttft_p99_ms=100.0, output_tok_per_s=10.0), behind=False)
    assert not holds(slos, measured(ttft_p99_ms=300.0, output_tok_per_s=10.0), behind=False)
    assert not holds(slos, measured(ttft_p99_ms=100.0, output_tok_per_s=10.0), behind=True)


def record(due_s: float, ttft_s: float, *, stays_s: float = 1.0, error: str | None = None) -> RequestRecord:
    return RequestRecord(
        scheduled_s=due_s,
        sent_s=due_s,
        first_token_s=due_s + ttft_s,
        done_s=due_s + stays_s,
        prompt_tokens=10,
        output_tokens=10,
        error=error,
    )


@pytest.mark.parametrize(("slow", "over"), [(1, False), (2, False), (3, True)])
def test_a_rung_is_hopeless_once_more_requests_are_slow_than_its_p99_allows(slow: int, over: bool) -> None:
    """The p99 of 200 requests is the 198th: it is above the limit when three of them are."""
    rung = SEARCH.rung(1, 10.0)
    records = [record(0.1 * i, 0.5 if i < slow else 0.1) for i in range(50)]
    assert hopeless(rung, records, (TTFT,), rate_rps=10.0) is over


def test_a_rung_that_lost_a_request_is_hopeless() -> None:
    assert hopeless(SEARCH.rung(1, 10.0), [record(0.0, 0.1, error="reset")], (TTFT,), rate_rps=10.0)


@pytest.mark.parametrize(("capacity_rps", "behind"), [(40.0, False), (24.0, False), (15.0, True), (10.0, True)])
def test_an_engine_falls_behind_when_requests_pile_up(capacity_rps: float, behind: bool) -> None:
    """One server, 20 requests a second for 20 s, each taking 1 / capacity; then a second of streaming."""
    random = np.random.default_rng(1)
    due_s = np.cumsum(random.exponential(1 / 20.0, size=400))
    free_s, records = 0.0, []
    for due in due_s:
        free_s = max(free_s, float(due)) + 1 / capacity_rps
        records.append(record(float(due), free_s - due, stays_s=free_s - due + 1.0))
    assert falls_behind(records, until_s=float(due_s[-1])) is behind


def test_an_engine_that_only_fills_doesn_t_fall_behind() -> None:
    """Each request stays 4 s: 70 a second for 6 s, as a 7B model on an H200 was seen to serve them."""
    records = [record(i / 70.0, 0.2, stays_s=4.0) for i in range(420)]
    assert not falls_behind(records, until_s=6.0)
    assert not falls_behind([record(i / 70.0, 0.2, stays_s=4.0) for i in range(1400)], until_s=20.0)


def test_a_rung_lasts_several_times_as_long_as_a_request_stays_at_the_nearest_rate_that_held() -> None:
    reference = measured(e2e_p50_ms=5_000.0)
    tried = [
        Tried(rate_rps=10.0, held=True, measurement=measured(e2e_p50_ms=1_000.0)),
        Tried(rate_rps=40.0, held=True, measurement=measured(e2e_p50_ms=3_000.0)),
        Tried(rate_rps=60.0, held=False, measurement=measured(e2e_p50_ms=9_000.0)),
    ]
    assert stay_s(reference, [], 10.0) == 5.0
    assert stay_s(reference, tried, 12.0) == 1.0
    assert stay_s(reference, tried, 30.0) == 3.0
    assert stay_s(reference, tried, 60.0) == 3.0, "requests that pile up stay as long as the rung lasts"
    assert SEARCH.rung(1, 12.0, least_s=4.0).duration_s == 4.0
    assert replace(SEARCH, duration_s=9.0).rung(1, 12.0, least_s=4.0).duration_s == 9.0


# --------------------------------------------------------------------------- in a trial, on the simulated engine

WORKLOAD = Workload(
    name="w",
    shapes=(RequestShape(prompt=FixedLength(tokens=200), output=FixedLength(tokens=50)),),
    rungs=(Rung(name="busy", arrivals=ClosedLoop(concurrency=16), requests=100),),
    reference_rungs=("busy",),
    goodput_search=GoodputSearch(requests=300),
)


def run(workload: Workload, *, limit_ms: float) -> Outcome:
    going = climb(
        EngineConfig(model="m", flags={"max-num-seqs": 16}),
        workload,
        name="t",
        slos=(Slo(metric="ttft_p99_ms", limit=limit_ms),),
        seed=5,
        devices=("0",),
        launcher=SimulatedLauncher(),
        loader=SimulatedLoader(noise=0.0),
        clock=lambda: 0.0,
        cancelled=lambda: False,
    )
    while True:
        try:
            next(going)
        except StopIteration as ended:
            outcome: Outcome = ended.value
            return outcome


@pytest.mark.timeout(20)
def test_a_trial_finds_the_rate_that_the_engine_really_holds() -> None:
    outcome = run(WORKLOAD, limit_ms=400.0)
    assert isinstance(outcome.verdict, Measured)
    shown = outcome.verdict.measurement
    assert shown.max_rate_within_slo_rps is not None and shown.goodput_rps is not None
    low, high = shown.intervals["max_rate_within_slo_rps"]
    assert low == shown.max_rate_within_slo_rps < high <= 1.1 * low
    assert shown.goodput_rps == pytest.approx(low, rel=0.15)
    # Long rungs at fixed rates on either side say the same.
    for rate, kept in ((0.8 * low, True), (1.3 * high, False)):
        fixed = replace(
            WORKLOAD,
            rungs=(Rung(name="fixed", arrivals=Poisson(rate_rps=rate), requests=500),),
            reference_rungs=("fixed",),
            goodput_search=None,
        )
        there = run(fixed, limit_ms=400.0)
        assert isinstance(there.verdict, Measured)
        assert there.verdict.measurement.ttft_p99_ms is not None
        assert (there.verdict.measurement.ttft_p99_ms <= 400.0) is kept


def test_the_search_leaves_latencies_to_the_reference_rung() -> None:
    alone = run(replace(WORKLOAD, goodput_search=None), limit_ms=400.0)
    both = run(WORKLOAD, limit_ms=400.0)
    assert isinstance(alone.verdict, Measured) and isinstance(both.verdict, Measured)
    own = {"goodput_rps", "goodput_rps_per_gpu", "max_rate_within_slo_rps", "intervals"}
    for name in ("rung", "ttft_p99_ms", "tpot_p99_ms", "output_tok_per_s", "requests_per_s"):
        assert name not in own
        assert getattr(alone.verdict.measurement, name) == getattr(both.verdict.measurement, name)
    assert both.measurements[0].goodput_rps is None
    assert [m.rung for m in both.measurements[1:]] == [f"goodput {i}" for i in range(1, len(both.measurements))]
    assert all(m.offered_rps is not None for m in both.measurements[1:])


def test_rungs_that_can_t_keep_the_limit_end_early() -> None:
    outcome = run(WORKLOAD, limit_ms=400.0)
    cut = [m for m in outcome.measurements[1:] if not m.complete]
    assert cut and all(m.requests < 300 for m in cut)


@pytest.mark.timeout(20)
def test_rates_below_one_a_second_work() -> None:
    slow = replace(
        WORKLOAD,
        shapes=(RequestShape(prompt=FixedLength(tokens=200), output=FixedLength(tokens=2000)),),
        rungs=(Rung(name="busy", arrivals=ClosedLoop(concurrency=2), requests=20),),
        goodput_search=GoodputSearch(requests=30),
    )
    outcome = run(slow, limit_ms=2_000.0)
    assert isinstance(outcome.verdict, Measured)
    rate = outcome.verdict.measurement.max_rate_within_slo_rps
    assert rate is not None and 0 < rate < 1 and math.isfinite(rate)
