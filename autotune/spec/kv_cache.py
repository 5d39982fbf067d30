"""What one request keeps in the KV cache, by its length: a sum over groups of layers, no constant per token.

As vLLM counts it when it says "Maximum concurrency" (vllm/v1/kv_cache_interface.py, `max_memory_usage_bytes`), without
the layers by which it pads groups of different sizes ("Add 3 padding layers, may waste at most 6.25%").
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.spec.config import EngineConfig
from autotune.spec.model import ModelShape

_BLOCK_TOKENS = 16
"""vLLM's default on GPUs. A request holds whole blocks."""

_DTYPE_BYTES = {"auto": None, "bfloat16": 2.0, "float16": 2.0, "half": 2.0, "float32": 4.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers that keep alike of a request. Bytes are of all of them together, on one GPU.

    `window`: so many tokens back they look; None: all. `state_bytes` are the same for any length.
    """

    bytes_per_token: float = 0.0
    window: int | None = None
    state_bytes: float = 0.0
    block_tokens: int = _BLOCK_TOKENS

    def request_bytes(self, tokens: int, *, step_tokens: int) -> float:
        """`step_tokens`: max-num-batched-tokens, by which a window is exceeded while a prompt is computed in chunks."""
        if self.window is None:
            blocks = -(-tokens // self.block_tokens)
        else:  # one more: a window needn't begin where a block does
            blocks = -(-min(self.window - 1 + step_tokens, tokens) // self.block_tokens) + 1
        return blocks * self.block_tokens * self.bytes_per_token + self.state_bytes


def cache_groups(config: EngineConfig, shape: ModelShape) -> tuple[CacheGroup, ...]:
    """Layers that see everything, layers with a window, recurrent layers: those that there are.

    Grouped-query attention: K and V of the KV heads that the GPU holds, which tensor parallelism divides until one head
    is left; MLA: the compressed latent, which it doesn't divide. Pipeline parallelism divides layers.
    """
    tensor, pipeline = config.degree("tensor-parallel-size"), config.degree("pipeline-parallel-size")
    width = _width_bytes(config, shape)
    heads = max(1, shape.kv_heads // tensor)
    layer_bytes = (shape.kv_latent or 2 * heads * shape.head_size) * width
    block = config.flags.get("block-size")
    block_tokens = block if isinstance(block, int) and block > 0 else _BLOCK_TOKENS

    def here(layers: int) -> int:
        return -(-layers // pipeline)

    groups = [
        CacheGroup(
            bytes_per_token=here(shape.attention_layers - shape.window_layers) * layer_bytes, block_tokens=block_tokens
        ),
        CacheGroup(
            bytes_per_token=here(shape.window_layers) * layer_bytes, window=shape.window, block_tokens=block_tokens
        ),
        CacheGroup(state_bytes=here(shape.state_layers) * shape.state_bytes / tensor),
    ]
    return tuple(group for group in groups if group.bytes_per_token or group.state_bytes)


def kv_bytes_per_token(config: EngineConfig, shape: ModelShape) -> float:
    """On one GPU, of a token that no window has left behind."""
    return sum(group.bytes_per_token for group in cache_groups(config, shape))


def request_bytes(config: EngineConfig, shape: ModelShape, tokens: int, *, step_tokens: int) -> float:
    """On one GPU, of a request of so many tokens."""
    return sum(group.request_bytes(tokens, step_tokens=step_tokens) for group in cache_groups(config, shape))


def _width_bytes(config: EngineConfig, shape: ModelShape) -> float:
    kv_dtype = str(config.flags.get("kv-cache-dtype") or "auto")
    width = _DTYPE_BYTES.get(kv_dtype)
    if width is not None:
        return width
    return shape.dtype_bytes if kv_dtype == "auto" else (0.5 if "4" in kv_dtype.split("_")[0] else 1.0)
