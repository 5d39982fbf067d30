import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_shapes import GEMMA_3_TEXT, QWEN_7B, QWEN_72B, QWEN_72B_FP8, shape

from autotune.errors import UserError
from autotune.spec.capacity import Capacity, estimate, gpu_gib, server_defaults
from autotune.spec.config import EngineConfig, FlagValue

H200 = 139.8
API_SERVER_DEFAULTS: dict[str, FlagValue] = {"max-num-seqs": 1024, "max-num-batched-tokens": 8192}
"""vLLM 0.24's on an H200."""


def capacity(config: dict[str, object], **flags: FlagValue) -> Capacity:
    """Of an engine whose weights are made up, as those of all logged engines here were."""
    spelled = {"load-format": "dummy"} | {name.replace("_", "-"): value for name, value in flags.items()}
    return estimate(EngineConfig(model="m", flags=spelled), shape(config), gpu_gib=H200, defaults=API_SERVER_DEFAULTS)


@pytest.mark.parametrize(
    ("config", "flags", "gib", "tokens"),
    [  # "Available KV cache memory", "GPU KV cache size": start logs of vLLM 0.24 on an H200
        (QWEN_7B, {}, 111.38, 2_085_488),
        (QWEN_7B, {"max_num_batched_tokens": 2048, "max_num_seqs": 64}, 112.91, 2_114_208),
        (QWEN_7B, {"kv_cache_dtype": "fp8"}, 111.35, 4_169_792),
        (QWEN_7B, {"quantization": "fp8"}, 117.51, 2_200_352),
        (QWEN_72B_FP8, {"enforce_eager": True, "max_model_len": 8192}, 55.95, 183_312),
        (QWEN_7B | {"max_position_embeddings": 1_010_000}, {"gpu_memory_utilization": 0.4}, 38.45, 719_888),
        (QWEN_7B, {"max_num_batched_tokens": 16384, "max_num_seqs": 512}, 111.48, 2_087_343),
        (QWEN_7B, {"max_num_batched_tokens": 4096, "max_num_seqs": 512}, 112.42, 2_105_088),
    ],
)
def test_the_estimate_is_within_a_quarter_gib_of_logged_engines(
    config: dict[str, object], flags: dict[str, FlagValue], gib: float, tokens: int
) -> None:
    found = capacity(config, **flags)
    assert found.kv_gib == pytest.approx(gib, abs=0.25)
    assert found.kv_tokens == pytest.approx(tokens, rel=0.005)


def test_an_engine_that_couldnt_start_for_lack_of_memory_is_estimated_so() -> None:
    # "Available KV cache memory: -1.86 GiB"
    found = capacity(QWEN_7B, gpu_memory_utilization=0.11)
    assert found.kv_gib == pytest.approx(-1.86, abs=0.25)
    assert not found.fits


def test_the_logged_maximum_concurrency_is_met() -> None:
    # "Maximum concurrency for 32,768 tokens per request: 63.64x", of a cache of 111.38 GiB
    assert capacity(QWEN_7B, max_model_len=32768).max_concurrency == pytest.approx(63.64, rel=0.02)


def test_72_billion_in_bf16_dont_fit_one_h200_and_fit_two() -> None:
    assert not capacity(QWEN_72B).fits
    assert capacity(QWEN_72B, tensor_parallel_size=2).fits


@given(st.sampled_from([1, 2, 4, 7, 14, 28]), st.sampled_from([1, 2, 4]), st.sampled_from(["auto", "fp8", "bfloat16"]))
def test_more_gpus_never_hold_fewer_tokens(tensor: int, pipeline: int, dtype: str) -> None:
    one = capacity(QWEN_7B, kv_cache_dtype=dtype)
    more = capacity(QWEN_7B, kv_cache_dtype=dtype, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
    assert more.kv_bytes_per_token <= one.kv_bytes_per_token
    assert more.weights_gib <= one.weights_gib
    assert more.gpus == tensor * pipeline


def test_a_sliding_window_makes_room_for_more_requests() -> None:
    found = capacity(GEMMA_3_TEXT, max_model_len=32768, max_num_batched_tokens=1024)
    assert found.max_concurrency is not None
    assert found.max_concurrency > 4 * found.kv_tokens / 32768


def test_a_given_cache_size_is_taken_as_it_is() -> None:
    assert capacity(QWEN_7B, kv_cache_memory_bytes=2**30).kv_gib == 1.0


@pytest.mark.parametrize(
    ("name", "gib"),
    [("H200", 139.8), ("nvidia h100 80gb hbm3", 79.2), ("A100-40", 39.4), ("A100-SXM4-80GB", 79.2), ("141 GiB", 141.0),
     ("80GiB", 80.0), ("NVIDIA GeForce RTX 4090", 23.5), ("L4", 22.0), ("L40S", 44.4), ("Tesla T4", 14.6)],
)  # fmt: skip
def test_a_gpu_is_known_by_name_or_by_size(name: str, gib: float) -> None:
    assert gpu_gib(name) == gib


@pytest.mark.parametrize("name", ["H2000", "80", "potato", "", "0 GiB", "80 s"])
def test_an_unknown_gpu_is_a_user_error(name: str) -> None:
    with pytest.raises(UserError, match="--gpu"):
        gpu_gib(name)


@pytest.mark.parametrize(
    ("gpu", "tokens", "sequences"),
    [("H200", 8192, 1024), ("80 GiB", 8192, 1024), ("A100-SXM4-80GB", 2048, 256), ("L4", 2048, 256),
     ("B200", 16384, 1024)],
)  # fmt: skip
def test_an_api_servers_defaults_depend_on_the_gpu(gpu: str, tokens: int, sequences: int) -> None:
    assert server_defaults(gpu) == {"max-num-batched-tokens": tokens, "max-num-seqs": sequences}


def test_more_tokens_a_step_leave_a_windows_request_less_room() -> None:
    few, many = (capacity(GEMMA_3_TEXT, max_model_len=32768, max_num_batched_tokens=n) for n in (1024, 8192))
    assert few.max_concurrency is not None
    assert many.max_concurrency is not None
    assert few.max_concurrency > 1.5 * many.max_concurrency
