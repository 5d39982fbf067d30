import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_shapes import DEEPSEEK_V2_LITE, GEMMA_3_TEXT, NEMOTRON_H, QWEN3_NEXT, QWEN_7B, shape

from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.kv_cache import CacheGroup, cache_groups, kv_bytes_per_token, request_bytes

SHAPES = [QWEN_7B, DEEPSEEK_V2_LITE, GEMMA_3_TEXT, QWEN3_NEXT, NEMOTRON_H]


def config(**flags: FlagValue) -> EngineConfig:
    return EngineConfig(model="m", flags={name.replace("_", "-"): value for name, value in flags.items()})


def test_kv_bytes_are_those_of_the_textbook() -> None:
    assert kv_bytes_per_token(config(), shape(QWEN_7B)) == 2 * 28 * 4 * 128 * 2


def test_kv_heads_are_repeated_beyond_their_number() -> None:
    four, many = (config(tensor_parallel_size=n) for n in (4, 28))
    assert kv_bytes_per_token(four, shape(QWEN_7B)) == kv_bytes_per_token(many, shape(QWEN_7B))


def test_tensor_parallelism_doesnt_split_an_mla_latent() -> None:
    wanted = 27 * (512 + 64) * 2
    found = [kv_bytes_per_token(config(tensor_parallel_size=n), shape(DEEPSEEK_V2_LITE)) for n in (1, 2)]
    assert found == [wanted, wanted]


def test_a_request_holds_whole_blocks() -> None:
    found = [request_bytes(config(), shape(QWEN_7B), tokens, step_tokens=2048) for tokens in (1, 16, 17)]
    assert found == [16 * 57344, 16 * 57344, 32 * 57344]


def test_a_window_keeps_its_tokens_and_those_of_one_step() -> None:
    # 1024 - 1 + 2048 tokens, in blocks of 16, and one block more: vLLM's max_admission_blocks_per_request
    group = CacheGroup(bytes_per_token=1.0, window=1024)
    assert group.request_bytes(131_072, step_tokens=2048) == (192 + 1) * 16
    assert group.request_bytes(256, step_tokens=2048) == (16 + 1) * 16


def test_recurrent_layers_keep_a_state_of_one_size_and_no_tokens() -> None:
    model = shape(QWEN3_NEXT)
    assert (model.attention_layers, model.state_layers) == (12, 36)
    assert kv_bytes_per_token(config(), model) == 12 * 2 * 2 * 256 * 2
    long, longer = (request_bytes(config(), model, tokens, step_tokens=2048) for tokens in (16_384, 32_768))
    assert longer - long == 16_384 * kv_bytes_per_token(config(), model)
    assert long > 16_384 * kv_bytes_per_token(config(), model)


def test_a_recurrent_state_is_as_large_as_vllm_pads_its_blocks_for() -> None:
    # "Setting attention block size to 544 tokens to ensure that attention page size is >= mamba page size."
    model = shape(QWEN3_NEXT)
    a_token_in_one_layer = 2 * model.kv_heads * model.head_size * model.dtype_bytes
    assert -(-model.state_bytes // a_token_in_one_layer // 16) * 16 == 544
    # and, of the same start, "Padding mamba page size by 1.49%"
    assert 544 * a_token_in_one_layer / model.state_bytes - 1 == pytest.approx(0.0149, abs=1e-4)


def test_layers_that_keep_nothing_cost_nothing() -> None:
    model = shape(NEMOTRON_H)
    assert (model.state_layers, model.attention_layers, model.bare_layers) == (2, 1, 2)
    assert len(cache_groups(config(), model)) == 2


@given(st.sampled_from(SHAPES), st.integers(1, 200_000), st.integers(0, 100_000), st.sampled_from(["auto", "fp8"]))
def test_a_longer_request_never_needs_less(model: dict[str, object], tokens: int, more: int, dtype: str) -> None:
    given_config = config(kv_cache_dtype=dtype)
    short, long = (
        request_bytes(given_config, shape(model), length, step_tokens=2048) for length in (tokens, tokens + more)
    )
    assert 0 < short <= long


@pytest.mark.parametrize("model", SHAPES)
def test_fp8_never_needs_more_than_16_bits(model: dict[str, object]) -> None:
    wide, narrow = (
        request_bytes(config(kv_cache_dtype=dtype), shape(model), 8192, step_tokens=2048) for dtype in ("auto", "fp8")
    )
    assert narrow < wide
