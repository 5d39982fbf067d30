"""Each thing that speaks against a rung, on records, samples and figures made for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.load.findable import findable_share
from autotune.load.server_side import settled
from autotune.load.statistics import measure
from autotune.load.validity import impossible_figures, untrustworthy
from autotune.spec.measurement import EngineSample, Measurement, RequestRecord
from autotune.spec.workload import (
    ClosedLoop,
    Conversation,
    FixedLength,
    Poisson,
    RequestShape,
    Rung,
    SharedPrefix,
    Workload,
)

RUNG = Rung(name="r", arrivals=ClosedLoop(concurrency=4), requests=40)


def answered(sent_s: float, *, ttft_s: float = 0.1, gap_s: float = 0.02, tokens: int = 11, n: int = 1) -> RequestRecord:
    return RequestRecord(
        scheduled_s=sent_s,
        sent_s=sent_s,
        first_token_s=sent_s + ttft_s,
        done_s=sent_s + ttft_s + gap_s * (tokens - 1),
        prompt_tokens=100,
        output_tokens=tokens * n,
        token_gaps_us=np.full(tokens - 1, round(gap_s * 1e6), "<u4").tobytes(),
        n=n,
        asked_prompt_tokens=100,
        asked_output_tokens=tokens * n,
    )


def lost(record: RequestRecord) -> RequestRecord:
    return replace(record, first_token_s=None, done_s=None, output_tokens=None, prompt_tokens=None, error="timeout")


EVEN = [answered(0.3 * wave) for wave in range(30) for _ in range(4)]
"""Four clients, thirty requests each: 1,320 output tokens of 120 requests."""

BEFORE = EngineSample(at_s=0.0, requests_done=8, generation_tokens=100, prefix_queries=0, prefix_hits=0)


def after(requests: int, tokens: int) -> EngineSample:
    return replace(BEFORE, at_s=9.0, requests_done=8 + requests, generation_tokens=100 + tokens)


def shown(
    records: Sequence[RequestRecord], samples: Sequence[EngineSample] = (), *, elapsed_s: float = 10.0
) -> Measurement:
    return measure(
        RUNG,
        records,
        elapsed_s=elapsed_s,
        sending_until_s=None,
        gpus=1,
        slos=(),
        samples=samples,
        complete=True,
    )


def reasons(
    records: Sequence[RequestRecord] = EVEN,
    *,
    samples: Sequence[EngineSample] = (),
    busy: Sequence[float] = (),
    until_s: float | None = None,
    findable: float = 0.0,
    rung: Rung = RUNG,
) -> tuple[str, ...]:
    return untrustworthy(
        rung,
        records,
        shown(records, samples),
        samples=samples,
        client_busy=busy,
        sending_until_s=until_s,
        findable_share=lambda: findable,
    )


def test_an_even_rung_with_counters_that_agree_is_trusted() -> None:
    assert reasons(samples=[BEFORE, after(120, 1320)], busy=[0.3] * 9, until_s=8.7) == ()


def test_an_engine_that_exports_nothing_is_believed() -> None:
    assert reasons(samples=[EngineSample(at_s=0.0), EngineSample(at_s=9.0)]) == ()


@pytest.mark.parametrize(
    ("requests", "tokens", "words"),
    [
        (121, 1320, "the engine finished 121 requests, at most 120 of them ours: someone else uses it"),
        (120, 1325, "the engine generated 1325 output tokens, at most 1320 of them ours: someone else uses it"),
        (119, 1320, "the engine finished 119 requests, we were given 120: another engine answered"),
        (120, 1300, "the engine generated 1300 output tokens, we were given 1320: another engine answered"),
    ],
)
def test_an_engine_that_counts_otherwise_is_not_ours_alone(requests: int, tokens: int, words: str) -> None:
    assert reasons(samples=[BEFORE, after(requests, tokens)]) == (words,)


def test_a_failed_request_may_have_been_finished_by_the_engine_or_not() -> None:
    records = [*EVEN[:-1], lost(EVEN[-1])]
    for requests, tokens in ((119, 1309), (119, 1315), (120, 1320)):
        assert reasons(records, samples=[BEFORE, after(requests, tokens)]) == ()
    assert len(reasons(records, samples=[BEFORE, after(121, 1321)])) == 2


def test_sequences_of_a_request_are_finished_together_or_one_by_one() -> None:
    records = [answered(0.3 * i, n=3) for i in range(40)]
    for requests in (40, 120):
        assert reasons(records, samples=[BEFORE, after(requests, 1320)]) == ()
    assert reasons(records, samples=[BEFORE, after(121, 1320)])


def test_a_last_reading_that_lags_is_not_settled() -> None:
    assert not settled(EVEN, [BEFORE, after(118, 1298)])
    assert settled(EVEN, [BEFORE, after(120, 1320)])
    assert settled(EVEN, [EngineSample(at_s=0.0)])


def test_cache_hits_beyond_what_prompts_share_are_those_of_an_earlier_run() -> None:
    warm = replace(after(120, 1320), prefix_queries=12000, prefix_hits=9000)
    [reason] = reasons(samples=[BEFORE, warm], findable=0.4)
    assert "75 % of the prompt tokens came from the prefix cache, these prompts share at most 40 %" in reason
    assert reasons(samples=[BEFORE, warm], findable=0.75) == ()


def test_a_cache_that_finds_less_than_it_could_is_the_configurations_affair() -> None:
    cold = replace(after(120, 1320), prefix_queries=12000, prefix_hits=0)
    assert reasons(samples=[BEFORE, cold], findable=0.9) == ()


def test_preempted_requests_may_find_their_own_blocks_again() -> None:
    again = replace(after(120, 1320), prefix_queries=15000, prefix_hits=3000, preemptions=12)
    assert reasons(samples=[replace(BEFORE, preemptions=0), again]) == ()


def test_throttled_clocks_are_named_with_their_reason() -> None:
    hot = replace(BEFORE, throttled_by=("hw_thermal_slowdown",))
    [reason] = reasons(samples=[BEFORE] * 7 + [hot] * 2 + [after(120, 1320)])
    assert reason == "GPU clocks were throttled in 2 of 10 readings: hw_thermal_slowdown"


def test_one_throttled_reading_in_ten_is_let_pass() -> None:
    hot = replace(BEFORE, throttled_by=("hw_thermal_slowdown",))
    assert reasons(samples=[BEFORE] * 8 + [hot, after(120, 1320)]) == ()


def test_kernels_compiled_during_the_rung_are_named_and_those_before_it_are_not() -> None:
    warm = replace(BEFORE, compilations=("Triton kernel JIT compilation during inference: a.",))
    spiked = replace(after(120, 1320), compilations=(*warm.compilations, "JIT compilation during inference: b."))
    [reason] = reasons(samples=[warm, spiked])
    assert reason.endswith(
        "1 kernels were compiled while it was measured, the first: JIT compilation during inference: b."
    )
    assert reasons(samples=[warm, replace(spiked, compilations=warm.compilations)]) == ()


def test_a_client_that_is_always_busy_was_the_limit() -> None:
    [reason] = reasons(busy=[0.95, 0.98, 0.99])
    assert "97 % of the time it was working or waiting for a CPU" in reason


def test_throughput_that_is_still_rising_has_not_settled() -> None:
    rising = [answered(0.3 * wave, gap_s=0.02) for wave in range(30) for _ in range(1 + wave // 8)]
    [reason] = reasons(rising, until_s=8.7)
    assert "throughput hadn't settled: +" in reason


def test_a_slow_first_wave_is_ramp_and_no_trend() -> None:
    ramp = [answered(0, ttft_s=0.8, gap_s=0.02)] * 4
    assert reasons(ramp + [answered(1 + 0.3 * wave) for wave in range(30) for _ in range(4)], until_s=9.7) == ()


def test_a_rung_of_a_few_waves_says_nothing_about_a_trend() -> None:
    assert reasons(EVEN[:40], until_s=2.7) == ()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_the_luck_of_arrivals_is_no_trend(seed: int) -> None:
    random = np.random.default_rng(seed)
    rung = replace(RUNG, arrivals=Poisson(rate_rps=10), requests=150)
    records = [answered(at_s) for at_s in np.cumsum(random.exponential(0.1, size=150)).tolist()]
    until_s = records[-1].sent_s
    found = untrustworthy(rung, records, shown(records, elapsed_s=until_s + 1), sending_until_s=until_s)
    assert found == ()


def test_a_lone_request_that_waits_ten_times_as_long_was_compiling() -> None:
    alone = [answered(2.0 * i, ttft_s=0.06) for i in range(40)]
    spiked = [replace(answered(0, ttft_s=1.5)), *alone[1:]]
    one = replace(RUNG, arrivals=ClosedLoop(concurrency=1))
    [reason] = reasons(spiked, rung=one)
    assert reason.startswith("1 requests that were alone waited up to 1500 ms")


def test_a_request_among_others_may_wait_for_them() -> None:
    assert reasons([answered(0, ttft_s=1.5), *EVEN[1:]]) == ()


@pytest.mark.parametrize(
    "figure",
    [
        {"ttft_p50_ms": -1715507074412.1443},
        {"ttft_p50_ms": 0.0},
        {"e2e_p99_ms": float("inf")},
        {"output_tok_per_s": 0.0},
        {"tpot_p99_ms": 10_500.0},
    ],
)
def test_figures_that_cannot_be_are_named(figure: dict[str, float]) -> None:
    [reason] = impossible_figures(replace(shown(EVEN), **figure))  # type: ignore[arg-type]
    assert next(iter(figure)) in reason


def share(shape: RequestShape, requests: int = 50) -> float:
    workload = Workload(name="w", shapes=(shape,), rungs=(), reference_rungs=())
    return findable_share(workload, RUNG, seed=1, requests=requests)


SHAPE = RequestShape(prompt=FixedLength(tokens=60), output=FixedLength(tokens=10))


def test_fresh_prompts_have_nothing_to_find() -> None:
    assert share(SHAPE) == 0.0


def test_a_shared_prefix_is_found_by_all_but_the_first() -> None:
    assert share(replace(SHAPE, prefix=SharedPrefix(tokens=40))) == pytest.approx(0.4 * 49 / 50)


def test_sequences_of_one_request_find_its_prompt() -> None:
    assert share(replace(SHAPE, n=2)) == 1.0


def test_a_later_turn_finds_all_that_was_said_before() -> None:
    two = replace(SHAPE, conversation=Conversation(turns=FixedLength(tokens=2)))
    assert share(two) == pytest.approx(70 / (60 + 130))
