import pytest
from spec_shapes import (
    DEEPSEEK_V2_LITE,
    GEMMA_3_TEXT,
    QWEN3_30B_A3B,
    QWEN_7B,
    QWEN_72B,
    QWEN_72B_AWQ,
    QWEN_72B_FP8,
    shape,
)

from autotune.errors import UserError
from autotune.spec.model import parse_model_shape

BILLION = 10**9


@pytest.mark.parametrize(
    ("config", "gigabytes"),
    [
        (QWEN_7B, 15.23),  # 7.62 billion parameters in bf16
        (QWEN_72B, 145.4),  # 72.7
        (QWEN3_30B_A3B, 61.06),  # 30.5
        (DEEPSEEK_V2_LITE, 31.4),  # 15.7
        (QWEN_72B_AWQ, 41.6),  # its checkpoint's index says so
    ],
)
def test_weights_are_as_large_as_the_published_checkpoints(config: dict[str, object], gigabytes: float) -> None:
    assert shape(config).weight_bytes / BILLION == pytest.approx(gigabytes, rel=0.03)


def test_an_fp8_checkpoint_takes_what_its_start_log_says() -> None:
    # "Model loading took 70.15 GiB memory" (vLLM 0.24, H200)
    assert shape(QWEN_72B_FP8).weight_bytes / 1024**3 == pytest.approx(70.15, rel=0.01)


def test_fp8_while_loading_takes_what_its_start_log_says() -> None:
    # "Model loading took 8.2 GiB memory" (vLLM 0.24, H200, --quantization fp8)
    assert shape(QWEN_7B).weight_bytes_as("fp8") / 1024**3 == pytest.approx(8.2, rel=0.02)


def test_a_quantized_checkpoint_isnt_quantized_again() -> None:
    assert shape(QWEN_72B_AWQ).weight_bytes_as("awq_marlin") == shape(QWEN_72B_AWQ).weight_bytes


def test_the_checkpoints_own_count_goes_before_the_estimate() -> None:
    assert parse_model_shape(QWEN_7B, name="m", weight_bytes=123).weight_bytes == 123


def test_a_sliding_window_that_is_switched_off_is_none() -> None:
    assert (shape(QWEN_7B).window, shape(QWEN_7B).window_layers) == (None, 0)


def test_layers_with_and_without_a_window_are_counted() -> None:
    found = shape(GEMMA_3_TEXT)
    assert (found.window, found.window_layers, found.layers) == (1024, 29, 34)


def test_the_language_model_of_a_multimodal_one_is_found() -> None:
    found = shape(GEMMA_3_TEXT)
    assert (found.architecture, found.heads, found.head_size) == ("Gemma3ForConditionalGeneration", 8, 256)


def test_mla_keeps_one_latent_per_token() -> None:
    assert shape(DEEPSEEK_V2_LITE).kv_latent == 512 + 64


def test_a_mixture_of_experts_is_told_by_its_experts() -> None:
    found = shape(QWEN3_30B_A3B)
    assert (found.experts, found.experts_per_token) == (128, 8)


@pytest.mark.parametrize("missing", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"])
def test_a_config_without_a_shape_is_named(missing: str) -> None:
    with pytest.raises(UserError, match=missing):
        shape({key: value for key, value in QWEN_7B.items() if key != missing})
