from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.load.statistics import measure, percentile
from autotune.spec.measurement import METRICS, EngineSample, Measurement, RequestRecord
from autotune.spec.objective import Slo
from autotune.spec.workload import ClosedLoop, Poisson, Rung

CLOSED = Rung(name="r", arrivals=ClosedLoop(concurrency=2), requests=10)
OPEN = Rung(name="r", arrivals=Poisson(rate_rps=1), requests=10)


def answered(
    sent_s: float,
    *,
    scheduled_s: float | None = None,
    ttft_s: float = 0.1,
    gap_s: float = 0.01,
    tokens: int = 11,
    prompt: int = 20,
    n: int = 1,
    cached: int | None = None,
) -> RequestRecord:
    """A request whose tokens came at an even pace."""
    return RequestRecord(
        scheduled_s=sent_s if scheduled_s is None else scheduled_s,
        sent_s=sent_s,
        first_token_s=sent_s + ttft_s,
        done_s=sent_s + ttft_s + gap_s * (tokens - 1),
        prompt_tokens=prompt,
        output_tokens=tokens * n,
        cached_tokens=cached,
        token_gaps_us=np.full(tokens - 1, round(gap_s * 1e6), "<u4").tobytes(),
        n=n,
    )


def lost(sent_s: float) -> RequestRecord:
    return RequestRecord(
        scheduled_s=sent_s,
        sent_s=sent_s,
        first_token_s=None,
        done_s=None,
        prompt_tokens=None,
        output_tokens=None,
        error="HTTP 500",
    )


def measured(
    records: Sequence[RequestRecord],
    *,
    rung: Rung = CLOSED,
    until_s: float | None = None,
    elapsed_s: float = 10.0,
    gpus: int = 1,
    slos: Sequence[Slo] = (),
    samples: Sequence[EngineSample] = (),
    complete: bool = True,
    streamed: int | None = None,
) -> Measurement:
    return measure(
        rung,
        records,
        elapsed_s=elapsed_s,
        sending_until_s=until_s,
        gpus=gpus,
        slos=slos,
        samples=samples,
        complete=complete,
        streamed_tokens=streamed,
    )


samples_of_values = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50)


@given(samples_of_values, st.floats(0, 1))
def test_a_percentile_is_a_value_that_was_seen(values: list[float], q: float) -> None:
    assert percentile(values, q) in values


@given(samples_of_values, st.floats(0, 1), st.floats(0, 1))
def test_percentiles_grow_with_their_rank(values: list[float], p: float, q: float) -> None:
    assert percentile(values, min(p, q)) <= percentile(values, max(p, q))


@given(st.integers(1, 1000), st.integers(1, 100))
def test_a_nearest_rank_percentile_covers_its_share_and_no_more(n: int, percent: int) -> None:
    rank = percentile(list(range(1, n + 1)), percent / 100)
    assert rank >= n * percent / 100 > rank - 1


def test_an_empty_sample_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="empty"):
        percentile([], 0.5)


def test_a_rung_without_requests_says_nothing_rather_than_zero() -> None:
    nothing = measured([])
    assert {metric for metric in METRICS if nothing.value(metric) is not None} == set()


def test_ttft_counts_from_the_sent_time_in_a_closed_loop() -> None:
    assert measured([answered(1.0, scheduled_s=0.5)]).ttft_p50_ms == pytest.approx(100)


def test_ttft_counts_from_the_scheduled_time_in_an_open_loop() -> None:
    shown = measured([answered(1.0, scheduled_s=0.5)], rung=OPEN)
    assert shown.ttft_p50_ms == pytest.approx(600)
    assert shown.ttft_sent_p50_ms == pytest.approx(100)


def test_e2e_counts_from_where_ttft_does() -> None:
    assert measured([answered(1.0, scheduled_s=0.5)], rung=OPEN).e2e_p50_ms == pytest.approx(700)


def test_tpot_leaves_out_the_first_token() -> None:
    assert measured([answered(0, gap_s=0.02, tokens=5)]).tpot_p50_ms == pytest.approx(20)


def test_tpot_of_tokens_that_came_bundled_counts_tokens_not_events() -> None:
    bundled = RequestRecord(
        scheduled_s=0,
        sent_s=0,
        first_token_s=0.1,
        done_s=0.4,
        prompt_tokens=1,
        output_tokens=7,
        token_gaps_us=np.full(3, 100_000, "<u4").tobytes(),
    )
    assert measured([bundled]).tpot_p50_ms == pytest.approx(300 / 6)


def test_one_token_has_no_time_per_token() -> None:
    assert measured([answered(0, tokens=1)]).tpot_p50_ms is None


def test_itl_is_taken_over_tokens() -> None:
    shown = measured([answered(0, gap_s=0.01, tokens=100), answered(0, gap_s=0.5, tokens=2)])
    assert shown.itl_p50_ms == pytest.approx(10)
    assert shown.itl_p99_ms == pytest.approx(10)


def test_tokens_that_arrive_while_draining_are_outside_the_window() -> None:
    inside, outside = answered(0, tokens=11), answered(0.95, tokens=11)  # the second streams from 1.05 s on
    shown = measured([inside, outside] * 10, rung=CLOSED, until_s=0.99, elapsed_s=2.0)
    assert shown.output_tok_per_s == pytest.approx(110 / 0.99)


def test_a_request_counts_by_the_share_of_its_tokens_in_the_window() -> None:
    half = answered(0.8, ttft_s=0.1, gap_s=0.02, tokens=10)  # at 0.9, 0.92, ... 1.08: five of ten by 0.99
    shown = measured([half] * 8, until_s=0.99, elapsed_s=2.0)
    assert shown.requests_per_s == pytest.approx(8 * 0.5 / 0.99)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.2, 5), st.floats(0.001, 0.05), st.integers(10, 60))
def test_steady_traffic_shows_the_rate_it_has_however_slow_its_answers(
    ttft_s: float, gap_s: float, tokens: int
) -> None:
    """Ten requests a second for ever: whatever the latency, tokens in the window come at ten answers a second."""
    stay_s = ttft_s + gap_s * tokens
    window_s = 20 * stay_s
    count = int(window_s * 10)
    records = [answered(i / 10, ttft_s=ttft_s, gap_s=gap_s, tokens=tokens) for i in range(count)]
    rung = Rung(name="r", arrivals=Poisson(rate_rps=10), requests=count)
    rate = measured(records, rung=rung, until_s=window_s, elapsed_s=window_s + stay_s).output_tok_per_s
    assert rate is not None
    assert rate == pytest.approx(10 * tokens, rel=0.06)


def test_the_ramp_is_outside_the_window() -> None:
    """Two clients whose first requests take ten times as long as those that follow."""
    ramp = [answered(0, ttft_s=0.5, gap_s=0.05)] * 2
    steady = [answered(1 + 0.2 * i) for i in range(25)] * 2
    shown = measured(ramp + steady, until_s=6.0)
    assert shown.output_tok_per_s == pytest.approx(2 * 11 / 0.2, rel=0.01)


def test_a_rung_of_less_than_five_ramps_keeps_its_beginning() -> None:
    shown = measured([answered(0.2 * i) for i in range(4)] * 2, until_s=0.8)
    assert shown.output_tok_per_s == pytest.approx(4 * 2 * 11 / 0.8)


def test_a_rung_that_is_sent_before_half_of_it_is_being_answered_is_a_batch() -> None:
    records = [answered(0.1 * i, ttft_s=0.9) for i in range(10)]
    shown = measured(records, rung=OPEN, until_s=0.9, elapsed_s=2.0)
    assert shown.output_tok_per_s == pytest.approx(10 * 11 / 1.9)


def test_a_batch_is_measured_to_its_last_answer() -> None:
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=100), requests=10)
    shown = measured([answered(0, ttft_s=1.0, gap_s=0.1, tokens=11)] * 10, rung=rung, until_s=0.01)
    assert shown.output_tok_per_s == pytest.approx(110 / 2)


def test_throughput_per_gpu_divides_by_the_gpus() -> None:
    records = [answered(0.1 * i) for i in range(10)]
    one, four = measured(records, until_s=1.0), measured(records, until_s=1.0, gpus=4)
    assert one.output_tok_per_s == four.output_tok_per_s
    assert one.output_tok_per_s is not None and four.output_tok_per_s_per_gpu == one.output_tok_per_s / 4


def test_failures_are_counted_and_lower_goodput_but_no_latency() -> None:
    records = [answered(0.1 * i) for i in range(10)]
    shown = measured([*records, lost(0.2), lost(0.3)], until_s=1.0)
    assert (shown.requests, shown.finished, shown.failed) == (12, 10, 2)
    assert shown.failed_share == pytest.approx(2 / 12)
    assert (shown.ttft_p99_ms, shown.goodput_rps) == (
        measured(records, until_s=1.0).ttft_p99_ms,
        measured(records, until_s=1.0).goodput_rps,
    )


@pytest.mark.parametrize(
    ("metric", "limit"), [("ttft_p99_ms", 150), ("ttft_p50_ms", 150), ("tpot_p90_ms", 15), ("e2e_p99_ms", 300)]
)
def test_goodput_holds_each_limit_against_every_request(metric: str, limit: float) -> None:
    good = [answered(0.1 * i) for i in range(6)]
    bad = [answered(0.1 * i + 0.05, ttft_s=0.2, gap_s=0.02) for i in range(3)]
    shown = measured(good + bad, until_s=0.9, slos=[Slo(metric=metric, limit=limit)])
    assert shown.goodput_rps is not None and shown.requests_per_s is not None
    assert shown.goodput_rps / shown.requests_per_s == pytest.approx(6 / 9)


def test_limits_that_are_no_requests_own_leave_goodput_alone() -> None:
    slos = [Slo(metric="itl_p99_ms", limit=0.1), Slo(metric="output_tok_per_s", limit=1e9, at_least=True)]
    shown = measured([answered(0.1 * i) for i in range(5)], slos=slos)
    assert shown.goodput_rps == shown.requests_per_s


def test_cached_tokens_are_those_the_answers_name() -> None:
    assert measured([answered(0, cached=5), answered(0, cached=0)]).cached_prompt_share == pytest.approx(5 / 40)


def test_cached_tokens_fall_back_to_the_engines_counters() -> None:
    samples = [
        EngineSample(at_s=0, prefix_queries=100, prefix_hits=10),
        EngineSample(at_s=1, prefix_queries=300, prefix_hits=60),
    ]
    assert measured([answered(0)], samples=samples).cached_prompt_share == pytest.approx(0.25)


def test_engine_levels_are_those_while_requests_were_being_sent() -> None:
    samples = [EngineSample(at_s=float(i), running=r, waiting=w) for i, (r, w) in enumerate([(4, 0), (8, 2), (1, 9)])]
    shown = measured([answered(0)], samples=samples, until_s=1.5)
    assert (shown.running_mean, shown.running_max, shown.waiting_max) == (6, 8, 2)


def test_the_kv_cache_may_be_fullest_while_the_rung_drains() -> None:
    samples = [EngineSample(at_s=float(i), kv_cache_usage=usage) for i, usage in enumerate([0.1, 0.5, 0.9, 0.0])]
    assert measured([answered(0)], samples=samples, until_s=1.5).kv_cache_usage_max == 0.9


def test_preemptions_are_counted_from_the_first_sample_on() -> None:
    samples = [EngineSample(at_s=i, preemptions=total) for i, total in enumerate([100.0, 100.0, 103.0])]
    assert measured([answered(0)], samples=samples).preemptions == 3


def test_an_engine_that_exports_no_counter_has_unknown_preemptions() -> None:
    assert measured([answered(0)], samples=[EngineSample(at_s=0)]).preemptions is None


def test_an_incomplete_rung_counts_the_tokens_of_requests_in_flight() -> None:
    shown = measured([answered(0)], complete=False, elapsed_s=2.0, streamed=500)
    assert shown.output_tok_per_s == 250


def test_an_incomplete_rung_without_that_count_takes_running_requests_as_half_done() -> None:
    samples = [EngineSample(at_s=1, running=4)]
    shown = measured([answered(0, tokens=10)] * 6, complete=False, elapsed_s=2.0, samples=samples)
    assert shown.output_tok_per_s == (60 + 20) / 2


def test_intervals_hold_the_figure_they_belong_to() -> None:
    random = np.random.default_rng(1)
    records = [answered(0.01 * i, ttft_s=random.exponential(0.1)) for i in range(400)]
    shown = measured(records, until_s=4.0, slos=[Slo(metric="ttft_p99_ms", limit=100)])
    assert {"ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "output_tok_per_s", "goodput_rps"} <= set(shown.intervals)
    for metric, (low, high) in shown.intervals.items():
        value = shown.value(metric)
        assert value is not None and low <= value <= high, metric


def test_no_interval_is_claimed_for_a_p99_of_fifty_requests() -> None:
    intervals = measured([answered(0.1 * i, ttft_s=0.1 + i / 1000) for i in range(50)], until_s=5.0).intervals
    assert "ttft_p50_ms" in intervals and "ttft_p99_ms" not in intervals


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    random = np.random.default_rng(7)
    hits = 0
    for _ in range(60):
        latencies = random.exponential(0.1, size=200)
        low, high = measured([answered(0.01 * i, ttft_s=t) for i, t in enumerate(latencies)]).intervals["ttft_p50_ms"]
        hits += low <= 100 * math.log(2) <= high
    assert hits >= 50  # 57 of 60 expected


def test_the_same_records_give_the_same_intervals() -> None:
    records = [answered(0.01 * i, ttft_s=0.1 + (i * 37 % 100) / 1000) for i in range(200)]
    assert measured(records).intervals == measured(list(reversed(records))).intervals


records_of_any_kind = st.lists(
    st.builds(
        answered,
        st.floats(0, 5),
        ttft_s=st.floats(0, 2),
        gap_s=st.floats(0, 0.1),
        tokens=st.integers(1, 8),
        n=st.integers(1, 2),
    )
    | st.builds(lost, st.floats(0, 5)),
    max_size=40,
)


@settings(max_examples=30, deadline=None)
@given(records_of_any_kind, st.none() | st.floats(0, 8), st.booleans(), st.sampled_from([CLOSED, OPEN]))
def test_no_figure_is_ever_nan_or_infinite(
    records: list[RequestRecord], until_s: float | None, complete: bool, rung: Rung
) -> None:
    shown = measured(records, rung=rung, until_s=until_s, complete=complete, elapsed_s=8.0)
    values = [shown.value(metric) for metric in METRICS]
    values += [end for ends in shown.intervals.values() for end in ends]
    assert all(value is None or math.isfinite(value) for value in values)


@settings(max_examples=30, deadline=None)
@given(records_of_any_kind)
def test_every_request_is_finished_or_failed(records: list[RequestRecord]) -> None:
    shown = measured(records)
    assert shown.finished + shown.failed == shown.requests == len(records)


def test_five_hundred_requests_are_measured_in_a_few_milliseconds() -> None:
    records = [answered(0.01 * i, tokens=128) for i in range(500)]
    measured(records)
    spent_s = []
    for _ in range(5):
        began_s = time.process_time()
        measured(records)
        spent_s.append(time.process_time() - began_s)
    assert min(spent_s) < 0.05


def test_every_metric_of_a_measurement_can_be_filled() -> None:
    samples = [
        EngineSample(
            at_s=i,
            running=1,
            waiting=0,
            kv_cache_usage=0.1,
            preemptions=0,
            prefix_queries=i,
            prefix_hits=0,
            inter_token_s=0.01 * i,
            inter_tokens=i,
        )
        for i in range(3)
    ]
    records = [replace(answered(0.1 * i, cached=0), degenerate=False) for i in range(10)]
    shown = measured(records, rung=OPEN, until_s=1.0, samples=samples)
    of_closed_loops, of_several_rungs = "concurrency", "max_rate_within_slo_rps"
    assert {f.name for f in fields(shown) if getattr(shown, f.name) is None} == {of_closed_loops, of_several_rungs}


def test_the_degenerate_share_is_of_the_answers_that_can_be_judged() -> None:
    records = [replace(answered(0.1 * i), degenerate=found) for i, found in enumerate([True, False, None, False, None])]
    assert measured(records).degenerate_share == pytest.approx(1 / 3)
    assert measured([answered(0.1 * i) for i in range(5)]).degenerate_share is None
