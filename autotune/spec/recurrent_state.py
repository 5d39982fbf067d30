"""What a hybrid model's recurrent layers keep of a request, from its config.json: a state of fixed size instead of a
key and a value per token (vllm/model_executor/layers/mamba/mamba_utils.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentState:
    """`layers` have a state of `bytes` each, before tensor parallelism divides it; `bare_layers` have neither state nor
    attention (Nemotron-H keeps its feed-forward parts as layers of their own)."""

    layers: int = 0
    bytes: int = 0
    bare_layers: int = 0


def read_recurrent_state(text: Mapping[str, object], *, layers: int, dtype_bytes: int) -> RecurrentState:
    """Gated delta nets (Qwen3-Next and later) and Mamba 2; nothing for other models, whose state isn't counted.

    `text`: the language model's part of config.json.
    """
    size = _gated_delta_net(text, dtype_bytes) or _mamba2(text, dtype_bytes)
    if size is None:
        return RecurrentState()
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        with_state, attention = pattern.count("M"), pattern.count("*")
        return RecurrentState(layers=with_state, bytes=size, bare_layers=max(0, layers - with_state - attention))
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(kinds, list):
        with_state = sum(any(word in str(kind) for word in ("linear", "mamba")) for kind in kinds)
        return RecurrentState(layers=with_state, bytes=size)
    every = _numbers(text, "full_attention_interval")
    return RecurrentState(layers=layers - layers // every[0], bytes=size) if every else RecurrentState()


def _gated_delta_net(text: Mapping[str, object], dtype_bytes: int) -> int | None:
    found = _numbers(
        text,
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    )
    if found is None:
        return None
    key_heads, value_heads, key_size, value_size, kernel = found
    convolved = (2 * key_heads * key_size + value_heads * value_size) * (kernel - 1) * dtype_bytes
    return convolved + value_heads * value_size * key_size * _state_dtype_bytes(text, dtype_bytes)


def _mamba2(text: Mapping[str, object], dtype_bytes: int) -> int | None:
    found = _numbers(
        text, "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"
    ) or _numbers(text, "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel")
    if found is None:
        return None
    heads, head_size, state_size, groups, kernel = found
    convolved = (heads * head_size + 2 * groups * state_size) * (kernel - 1) * dtype_bytes
    return convolved + heads * head_size * state_size * _state_dtype_bytes(text, dtype_bytes)


def _state_dtype_bytes(text: Mapping[str, object], dtype_bytes: int) -> int:
    return 4 if text.get("mamba_ssm_dtype") == "float32" else dtype_bytes


def _numbers(text: Mapping[str, object], *keys: str) -> list[int] | None:
    """None unless all of them are there."""
    found = [value for key in keys if isinstance(value := text.get(key), int) and value > 0]
    return found if len(found) == len(keys) else None
