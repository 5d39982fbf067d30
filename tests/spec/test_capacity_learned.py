from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_shapes import QWEN_7B, QWEN_72B, shape

from autotune.spec.capacity_learned import Prediction, SeenStart, doomed, predict
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.measurement import StartFacts

H200 = 139.8
DEFAULTS: dict[str, FlagValue] = {"max-num-seqs": 1024, "max-num-batched-tokens": 8192}
SMALL_BATCH: dict[str, FlagValue] = {"load-format": "dummy", "max-num-batched-tokens": 2048, "max-num-seqs": 64}
QWEN = shape(QWEN_7B)


def config(**flags: FlagValue) -> EngineConfig:
    return EngineConfig(model="m", flags={name.replace("_", "-"): value for name, value in flags.items()})


def seen(kv_gib: float | None, flags: dict[str, FlagValue] | None = None) -> SeenStart:
    return SeenStart(config=EngineConfig(model="m", flags=flags or {}), facts=StartFacts(kv_cache_gib=kv_gib))


def predicted(given: EngineConfig, *starts: SeenStart, gpu_gib: float = H200) -> Prediction:
    return predict(given, QWEN, gpu_gib=gpu_gib, defaults=DEFAULTS, seen=starts)


def width(prediction: Prediction) -> float:
    return prediction.optimistic.kv_gib - prediction.pessimistic.kv_gib


def test_one_start_puts_right_a_gpu_that_was_taken_for_too_large() -> None:
    # "Available KV cache memory" of an H200, whose memory is said to be 2 GiB more than it is.
    after = predicted(config(), seen(112.91, SMALL_BATCH), gpu_gib=H200 + 2)
    assert predicted(config(), gpu_gib=H200 + 2).expected.kv_gib == pytest.approx(111.38 + 2 * 0.92, abs=0.2)
    assert after.expected.kv_gib == pytest.approx(111.38, abs=0.2)
    assert after.starts == 1


def test_a_start_narrows_the_interval() -> None:
    before, after = predicted(config()), predicted(config(), seen(112.91, SMALL_BATCH))
    assert width(after) < width(before) / 3
    assert before.pessimistic.kv_gib < before.expected.kv_gib < before.optimistic.kv_gib


def test_starts_that_disagree_widen_the_interval_to_hold_them_all() -> None:
    found = predicted(config(), seen(111.0), seen(112.0), seen(114.0))
    assert found.expected.kv_gib == pytest.approx(112.0)
    assert found.pessimistic.kv_gib <= 111.0
    assert found.optimistic.kv_gib >= 114.0


def test_a_start_of_another_layout_corrects_and_leaves_doubts() -> None:
    quantized = seen(117.0, {"quantization": "fp8"})
    same, other = predicted(config(quantization="fp8"), quantized), predicted(config(), quantized)
    assert width(same) < width(other) < width(predicted(config()))


def test_starts_of_the_same_layout_are_believed_before_others() -> None:
    found = predicted(config(), seen(111.38), seen(90.0, {"quantization": "fp8"}))
    assert found.expected.kv_gib == pytest.approx(111.38)
    assert found.starts == 1


def test_a_start_whose_log_ended_before_the_cache_was_sized_teaches_nothing() -> None:
    assert predicted(config(), seen(None)) == predicted(config())


def test_a_cache_that_was_asked_for_is_no_estimate_and_teaches_nothing() -> None:
    fixed = seen(8.0, {"kv-cache-memory-bytes": 8 * 2**30})
    assert predicted(config(), fixed) == predicted(config())
    assert width(predicted(config(kv_cache_memory_bytes=2**30), seen(111.38))) == 0


def test_a_model_that_cant_fit_is_doomed_and_the_reason_says_what_is_missing() -> None:
    found = predict(config(), shape(QWEN_72B), gpu_gib=H200, defaults=DEFAULTS)
    assert "GiB are missing" in (doomed(config(), found) or "")


def test_a_length_beyond_the_cache_is_doomed_and_the_reason_names_it() -> None:
    given = config(max_model_len=1_000_000, gpu_memory_utilization=0.4)  # logged: 719,888 tokens at most
    assert "1000000" in (doomed(given, predicted(given)) or "")


@pytest.mark.parametrize("length", ["auto", -1])
def test_a_length_that_vllm_chooses_itself_isnt_doomed(length: FlagValue) -> None:
    long = replace(QWEN, max_positions=10_000_000)
    given = config(max_model_len=length)
    assert doomed(given, predict(given, long, gpu_gib=H200, defaults=DEFAULTS)) is None


def test_what_only_an_optimist_sees_start_isnt_rejected() -> None:
    given = config(gpu_memory_utilization=0.13)
    found = predicted(given)
    assert not found.expected.fits
    assert found.optimistic.fits
    assert doomed(given, found) is None


@pytest.mark.parametrize("flags", [{"cpu_offload_gb": 100}, {"num_gpu_blocks_override": 10}])
def test_what_the_estimate_doesnt_know_isnt_judged(flags: dict[str, FlagValue]) -> None:
    given = config(**flags)
    assert doomed(given, predict(given, shape(QWEN_72B), gpu_gib=H200, defaults=DEFAULTS)) is None


@given(st.floats(0.3, 0.95), st.integers(64, 4096), st.integers(2048, 16384), st.lists(st.floats(-5, 200), max_size=4))
def test_the_prediction_lies_within_its_interval(
    utilization: float, sequences: int, tokens: int, logged: list[float]
) -> None:
    given = config(gpu_memory_utilization=utilization, max_num_seqs=sequences, max_num_batched_tokens=tokens)
    found = predicted(given, *map(seen, logged))
    assert found.pessimistic.kv_gib <= found.expected.kv_gib <= found.optimistic.kv_gib
    assert found.pessimistic.kv_tokens <= found.expected.kv_tokens <= found.optimistic.kv_tokens
