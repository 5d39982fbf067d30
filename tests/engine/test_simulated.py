from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engine.simulated import SimulatedLauncher
from autotune.load.simulated import SimulatedLoader, _Simulation
from autotune.load.statistics import measure
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import LoadBlock, Measurement
from autotune.spec.verdict import EngineFailure
from autotune.spec.workload import (
    Arrivals,
    ClosedLoop,
    Conversation,
    FixedLength,
    Poisson,
    RequestShape,
    Rung,
    Workload,
)

WORKLOAD = Workload(
    name="w",
    shapes=(RequestShape(prompt=FixedLength(tokens=400), output=FixedLength(tokens=60)),),
    rungs=(),
    reference_rungs=(),
)
BUSY = ClosedLoop(concurrency=128)


def start(flags: Mapping[str, FlagValue], launcher: SimulatedLauncher | None = None) -> Endpoint | EngineFailure:
    with (launcher or SimulatedLauncher())(
        EngineConfig(model="m", flags=flags), ("0",), name="t", cancelled=lambda: False
    ) as started:
        return started


def started(flags: Mapping[str, FlagValue]) -> Endpoint:
    endpoint = start(flags)
    assert isinstance(endpoint, Endpoint)
    return endpoint


def failed(flags: Mapping[str, FlagValue]) -> EngineFailure:
    failure = start(flags)
    assert isinstance(failure, EngineFailure)
    return failure


def blocks_of(flags: Mapping[str, FlagValue], arrivals: Arrivals = BUSY, *, seed: int = 1) -> list[LoadBlock]:
    rung = Rung(name="r", arrivals=arrivals, requests=400)
    return list(SimulatedLoader()(started(flags), WORKLOAD, rung, seed=seed))


def shown(flags: Mapping[str, FlagValue], arrivals: Arrivals = BUSY) -> Measurement:
    blocks = blocks_of(flags, arrivals)
    return measure(
        Rung(name="r", arrivals=arrivals, requests=400),
        [record for block in blocks for record in block.records],
        elapsed_s=blocks[-1].elapsed_s,
        sending_until_s=next(block.elapsed_s for block in blocks if not block.sending),
        gpus=1,
        slos=(),
        samples=(),
        complete=True,
    )


def figures(metric: str, *candidates: Mapping[str, FlagValue], arrivals: Arrivals = BUSY) -> list[float]:
    return [shown(flags, arrivals).value(metric) or 0.0 for flags in candidates]


def seqs(*values: int) -> list[dict[str, FlagValue]]:
    return [{"max-num-seqs": value} for value in values]


def test_the_default_configuration_starts() -> None:
    assert started({}).facts.kv_cache_tokens is not None


def test_a_prefill_budget_beyond_the_memory_runs_out_of_it_while_profiling() -> None:
    failure = failed({"max-num-batched-tokens": 262_144})
    assert (failure.cause, failure.stage) == ("oom.profiling", "profiling")
    assert 0 < failure.shortfall <= 1


def test_what_runs_out_of_memory_on_one_gpu_fits_on_two() -> None:
    flags: dict[str, FlagValue] = {"gpu-memory-utilization": 0.2}
    assert failed(flags).cause == "capacity.no_kv_blocks"
    assert started({**flags, "tensor-parallel-size": 2}).config.gpus == 2


def test_a_cache_smaller_than_one_request_is_too_small() -> None:
    assert failed({"gpu-memory-utilization": 0.23, "max-model-len": 131_072}).cause == "capacity.kv_too_small"


def test_a_budget_smaller_than_the_batch_is_a_conflict() -> None:
    assert failed({"max-num-batched-tokens": 64, "max-num-seqs": 128}).cause == "config.conflict"


def test_every_simulated_failure_is_the_configurations_own() -> None:
    assert failed({"gpu-memory-utilization": 0.1}).blames_configuration


def test_a_failed_start_takes_its_time() -> None:
    assert failed({"gpu-memory-utilization": 0.1}).after_s > 0


@given(st.floats(0.3, 0.95), st.floats(0.3, 0.95))
def test_more_memory_never_means_fewer_cache_tokens(a: float, b: float) -> None:
    tokens = [started({"gpu-memory-utilization": share}).facts.kv_cache_tokens or 0 for share in sorted((a, b))]
    assert tokens[0] <= tokens[1]


def test_an_eager_start_is_shorter() -> None:
    assert started({"enforce-eager": True}).start_s < started({}).start_s


def test_a_start_can_be_given_up() -> None:
    slow = SimulatedLauncher(time_scale=1.0)
    asked_at = time.monotonic()
    cancelled = iter([False, False, True])
    with slow(EngineConfig(model="m"), ("0",), name="t", cancelled=lambda: next(cancelled, True)) as outcome:
        assert isinstance(outcome, EngineFailure)
    assert outcome.cause == "infra.cancelled"
    assert time.monotonic() - asked_at < 1


def test_without_a_time_scale_nothing_sleeps() -> None:
    began = time.monotonic()
    assert blocks_of({})[-1].elapsed_s > 3
    assert time.monotonic() - began < 1


def test_the_time_scale_turns_simulated_seconds_into_real_ones() -> None:
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=4), requests=40)
    began = time.monotonic()
    blocks = list(SimulatedLoader(time_scale=0.05)(started({}), WORKLOAD, rung, seed=1))
    assert time.monotonic() - began == pytest.approx(0.05 * blocks[-1].elapsed_s, abs=0.2)


def test_launcher_and_loader_travel_to_other_processes() -> None:
    pair = (SimulatedLauncher(time_scale=0.5), SimulatedLoader(noise=0.02))
    assert pickle.loads(pickle.dumps(pair)) == pair  # as Ray sends them to its actors; nothing is read from a file


def test_the_same_seed_gives_the_same_load() -> None:
    assert blocks_of({}, seed=4) == blocks_of({}, seed=4) != blocks_of({}, seed=5)


def test_noise_is_small_and_without_it_runs_are_exact() -> None:
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=8), requests=40)
    noisy, exact = (
        [list(SimulatedLoader(noise=noise)(started({}), WORKLOAD, rung, seed=seed))[-1].elapsed_s for seed in range(8)]
        for noise in (0.01, 0.0)
    )
    assert len(set(exact)) == 1
    assert all(0.95 < seconds / exact[0] < 1.05 for seconds in noisy) and len(set(noisy)) == 8


def test_more_sequences_bring_throughput_and_cost_time_per_token() -> None:
    candidates = seqs(8, 32, 128)
    throughput = figures("output_tok_per_s", *candidates)
    assert all(later > 1.2 * earlier for earlier, later in pairwise(throughput))
    assert figures("tpot_p50_ms", *candidates) == sorted(figures("tpot_p50_ms", *candidates))


def test_fewer_sequences_make_requests_queue() -> None:
    few, many = figures("ttft_p50_ms", *seqs(8, 128))
    assert few > 5 * many


def test_tensor_parallel_speeds_up_by_less_than_its_gpus() -> None:
    one, two = figures("output_tok_per_s", {}, {"tensor-parallel-size": 2})
    assert one < two < 2 * one


def test_a_larger_prefill_budget_stalls_decoding() -> None:
    small, large = figures("itl_p99_ms", {"max-num-batched-tokens": 512}, {"max-num-batched-tokens": 16_384})
    assert large > 1.5 * small


def test_an_open_loop_above_capacity_makes_requests_wait() -> None:
    below, above = (shown({}, Poisson(rate_rps=rate)).ttft_p99_ms or 0.0 for rate in (5, 500))
    assert above > 10 * below


def test_a_small_cache_limits_what_runs_at_once() -> None:
    roomy, tight = figures("output_tok_per_s", {}, {"gpu-memory-utilization": 0.223})
    assert tight < 0.8 * roomy


def test_no_more_sequences_run_than_allowed() -> None:
    records = [record for block in blocks_of({"max-num-seqs": 8}) for record in block.records]
    edges = sorted([(r.first_token_s or 0.0, 1) for r in records] + [(r.done_s or 0.0, -1) for r in records])
    running = peak = 0
    for _, step in edges:
        running += step
        peak = max(peak, running)
    assert peak <= 8


def test_an_engine_without_room_for_what_runs_dies_and_loses_all_that_is_in_flight() -> None:
    endpoint = started({"gpu-memory-utilization": 0.98, "max-num-seqs": 128})
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=160), requests=400)
    blocks = list(SimulatedLoader()(endpoint, WORKLOAD, rung, seed=1))
    failure = endpoint.failure()
    assert failure is not None
    assert (failure.cause, failure.blames_configuration) == ("oom.runtime", True)
    assert [record.error for block in blocks for record in block.records] == ["the engine died"] * 160
    assert blocks[-1].in_flight == 0


def test_the_same_engine_lives_while_fewer_run() -> None:
    endpoint = started({"gpu-memory-utilization": 0.98, "max-num-seqs": 128})
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=64), requests=200)
    blocks = list(SimulatedLoader()(endpoint, WORKLOAD, rung, seed=1))
    assert endpoint.failure() is None
    assert {record.error for block in blocks for record in block.records} == {None}


# ---------------------------------------------------------------- what vLLM's scheduler does


TIGHT = SimulatedLauncher(kv_mib_per_token=10.0)
"""A KV cache of some thousand tokens: 128 requests of 460 don't fit it."""


def shown_by(launcher: SimulatedLauncher, **flags: FlagValue) -> Measurement:
    endpoint = start(
        {"max-model-len": 512, **{name.replace("_", "-"): value for name, value in flags.items()}}, launcher
    )
    assert isinstance(endpoint, Endpoint)
    rung = Rung(name="r", arrivals=BUSY, requests=400)
    blocks = list(SimulatedLoader(noise=0.0)(endpoint, WORKLOAD, rung, seed=1))
    records = [record for block in blocks for record in block.records]
    assert [record.output_tokens for record in records] == [60] * 400
    return measure(
        rung,
        records,
        elapsed_s=blocks[-1].elapsed_s,
        sending_until_s=next(block.elapsed_s for block in blocks if not block.sending),
        gpus=1,
        slos=(),
        samples=(),
        complete=True,
    )


def test_a_full_cache_preempts_and_every_answer_is_still_complete() -> None:
    rung = Rung(name="r", arrivals=BUSY, requests=400)
    endpoint = start({"max-model-len": 512}, TIGHT)
    assert isinstance(endpoint, Endpoint)
    simulation = _Simulation(SimulatedLoader(noise=0.0), endpoint, WORKLOAD, rung, seed=1)
    records = [record for block in simulation.blocks() for record in block.records]
    assert simulation.preemptions > 0
    assert len(records) == 400 and all(record.output_tokens == 60 for record in records)
    assert (simulation.kv_used, simulation.sequences, simulation.answering) == (0, 0, 0)


def test_conversations_whose_turns_end_together_go_on_in_turn() -> None:
    shape = replace(WORKLOAD.shapes[0], conversation=Conversation(turns=FixedLength(tokens=3), think_s=0.5))
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=16), requests=60)
    blocks = list(SimulatedLoader(noise=0.0)(started({}), replace(WORKLOAD, shapes=(shape,)), rung, seed=1))
    assert sum(len(block.records) for block in blocks) == 60


def test_without_chunked_prefill_a_prompt_is_read_whole_and_decoding_waits() -> None:
    whole = shown_by(SimulatedLauncher(), enable_chunked_prefill=False, max_num_batched_tokens=2048)
    chunks = shown_by(SimulatedLauncher(), enable_chunked_prefill=True, max_num_batched_tokens=256)
    assert whole.itl_p99_ms is not None and chunks.itl_p99_ms is not None
    assert whole.itl_p99_ms > chunks.itl_p99_ms


def test_batches_beyond_the_largest_graph_wait_for_their_launches() -> None:
    graphs = shown_by(SimulatedLauncher(), max_num_seqs=128)
    eager = shown_by(SimulatedLauncher(), max_num_seqs=128, enforce_eager=True)
    few = shown_by(SimulatedLauncher(), max_num_seqs=128, max_cudagraph_capture_size=8)
    assert graphs.output_tok_per_s is not None and eager.output_tok_per_s is not None
    assert graphs.output_tok_per_s > 1.1 * eager.output_tok_per_s
    assert few.output_tok_per_s == pytest.approx(eager.output_tok_per_s, rel=0.02)


def test_async_scheduling_hides_a_part_of_the_hosts_time() -> None:
    slow, fast = shown_by(SimulatedLauncher()), shown_by(SimulatedLauncher(), async_scheduling=True)
    assert slow.tpot_p50_ms is not None and fast.tpot_p50_ms is not None and fast.tpot_p50_ms < slow.tpot_p50_ms


@given(st.integers(1, 200), st.integers(64, 4096), st.booleans(), st.integers(0, 3))
@settings(max_examples=15, deadline=None)
@pytest.mark.timeout(20)
def test_whatever_the_flags_every_request_is_answered_once_and_nothing_is_held_at_the_end(
    seqs: int, batched: int, chunked: bool, seed: int
) -> None:
    flags: dict[str, FlagValue] = {
        "max-num-seqs": min(seqs, batched),
        "max-num-batched-tokens": batched,
        "enable-chunked-prefill": chunked or batched < 512,
        "max-model-len": 512,
    }
    endpoint = start(flags, TIGHT)
    assert isinstance(endpoint, Endpoint)
    rung = Rung(name="r", arrivals=Poisson(rate_rps=40.0), requests=150)
    simulation = _Simulation(SimulatedLoader(), endpoint, WORKLOAD, rung, seed=seed)
    records = [record for block in simulation.blocks() for record in block.records]
    assert len(records) == 150 and all(record.error is None for record in records)
    assert (simulation.kv_used, simulation.sequences, simulation.decoding) == (0, 0, 0)
