"""How much KV cache an engine will have: an estimate from the model's shape, made before anything is started.

It is an estimate. Weights and KV bytes follow from the shape; what vLLM needs besides (activations, sampler, CUDA
graphs, context) is a formula fitted to start logs of vLLM 0.24 on an H200 (tests/spec/test_capacity.py holds it to
within 2 % of those). Another GPU, back end or version may differ by a GiB or two, hybrid and state-space models by
more. The start log of a real engine always wins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.errors import UserError
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.flag import nearest
from autotune.spec.model import ModelShape
from autotune.spec.units import size_gib

_GIB = 1024**3
_CONTEXT_GIB = 1.0
"""CUDA context, cuBLAS and NCCL buffers: what 0.24's logs leave unexplained, within 0.2 GiB."""
_GRAPH_GIB_PER_SIZE = 0.001
"""0.52 GiB for sizes up to 512, 0.14 GiB up to 128."""
_COMMUNICATION_GIB = 0.6
_SAMPLER_BYTES_PER_LOGIT = 10
"""bf16 logits, their fp32 copy and the sorted one."""

_FALLBACK: Mapping[str, FlagValue] = {
    "gpu-memory-utilization": 0.92,
    "max-num-batched-tokens": 8192,
    "max-num-seqs": 256,
    "tensor-parallel-size": 1,
    "pipeline-parallel-size": 1,
    "kv-cache-dtype": "auto",
}

_KV_BYTES = {"auto": None, "bfloat16": 2.0, "float16": 2.0, "half": 2.0, "float32": 4.0}

GPU_GIB: Mapping[str, float] = {
    "B200": 178.4,
    "B300": 267.7,
    "H200": 139.8,
    "H100": 79.2,
    "H100-NVL": 93.1,
    "H20": 95.6,
    "A100": 79.2,
    "A100-40": 39.4,
    "A800": 79.2,
    "L40S": 44.4,
    "L40": 44.4,
    "L4": 22.0,
    "A10": 22.1,
    "A10G": 22.1,
    "A30": 23.6,
    "A40": 44.4,
    "A6000": 47.4,
    "T4": 14.6,
    "V100": 31.7,
    "RTX-4090": 23.5,
    "RTX-3090": 23.6,
    "RTX-5090": 31.4,
    "RTX-6000-ADA": 47.4,
    "RTX-PRO-6000": 95.0,
    "MI300X": 191.7,
    "MI325X": 255.7,
}
"""What the driver reports as total, in GiB, near enough for an estimate (cards are sold in other units)."""


def _plain_name(given: str) -> str:
    plain = re.sub(r"^(NVIDIA|AMD|TESLA|GEFORCE)\b", "", given.strip().upper()).strip()
    plain = re.sub(r"^(NVIDIA|TESLA|GEFORCE|INSTINCT)\b", "", plain).strip().replace(" ", "-").replace("_", "-")
    return re.sub(r"^RTX(?=\d)", "RTX-", plain)


def gpu_name(given: str) -> str | None:
    """The key of `GPU_GIB` that "nvidia h100 80gb" means, or None."""
    plain = _plain_name(given)
    if plain.startswith("A100") and "40" in plain:
        return "A100-40"
    names = sorted(GPU_GIB, key=len, reverse=True)
    return next((name for name in names if plain == name or plain.startswith(f"{name}-")), None)


def gpu_gib(given: str) -> float:
    """ "H200", "nvidia h100 80gb" or "141 GiB". Raises UserError with the known names."""
    text = given.strip()
    if re.match(r"[\d.]", text):
        try:
            found = size_gib(text)
        except ValueError:
            found = 0.0
        if found >= 1:
            return found
        raise UserError(
            "this is no size of a GPU's memory",
            key="--gpu",
            value=given,
            remedy="write a name, or a size such as 80 GiB",
        )
    name = gpu_name(text)
    if name is not None:
        return GPU_GIB[name]
    near = nearest(_plain_name(text), list(GPU_GIB))
    raise UserError(
        "this GPU isn't known by name",
        key="--gpu",
        value=given,
        remedy=f"{f'did you mean {near}? ' if near else ''}Give its memory instead, such as --gpu '80 GiB'",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """GiB are per GPU; tokens and concurrency are those of one engine (one data-parallel rank).

    `kv_gib` may be negative: that is missing. `max_concurrency`: requests of full max-model-len at once, None when the
    length isn't known.
    """

    gpus: int
    gpu_gib: float
    weights_gib: float
    other_gib: float
    kv_gib: float
    kv_bytes_per_token: float
    kv_tokens: int
    max_model_len: int | None
    max_concurrency: float | None

    @property
    def fits(self) -> bool:
        """Whether at least one request of full length has room."""
        return self.kv_gib > 0 and (self.max_concurrency is None or self.max_concurrency >= 1)


def kv_bytes_per_token(config: EngineConfig, shape: ModelShape) -> float:
    """On one GPU. Grouped-query attention: K and V of the KV heads that the GPU holds, which tensor parallelism divides
    until one head is left; MLA: the compressed latent, which it doesn't divide. Pipeline parallelism divides layers.
    """
    tensor, pipeline = _whole(config, {}, "tensor-parallel-size"), _whole(config, {}, "pipeline-parallel-size")
    kv_dtype = str(config.flags.get("kv-cache-dtype") or "auto")
    width = _KV_BYTES.get(kv_dtype)
    if width is None:
        width = shape.dtype_bytes if kv_dtype == "auto" else (0.5 if "4" in kv_dtype.split("_")[0] else 1.0)
    layers = -(-shape.layers // pipeline)
    if shape.kv_latent:
        return layers * shape.kv_latent * width
    heads = max(1, shape.kv_heads // tensor)
    return layers * 2 * heads * shape.head_size * width


def estimate(
    config: EngineConfig, shape: ModelShape, *, gpu_gib: float, defaults: Mapping[str, FlagValue] | None = None
) -> Capacity:
    """`defaults` stand in for flags that `config` doesn't give; see this module's text for how far to trust it."""
    known = {**_FALLBACK, **(defaults or {})}
    tensor, pipeline = (_whole(config, known, f"{kind}-parallel-size") for kind in ("tensor", "pipeline"))
    quantization = config.flags.get("quantization")
    weights = shape.weight_bytes_as(str(quantization) if quantization else None) / tensor / pipeline / _GIB
    other = _other_gib(config, shape, known, tensor=tensor)
    bytes_per_token = kv_bytes_per_token(config, shape)
    fixed = config.flags.get("kv-cache-memory-bytes")
    if isinstance(fixed, int):
        kv_gib = fixed / _GIB
    else:
        kv_gib = gpu_gib * _number(config, known, "gpu-memory-utilization") - weights - other
    tokens = max(0, int(kv_gib * _GIB / bytes_per_token))
    length = config.flags.get("max-model-len")
    length = length if isinstance(length, int) and length > 0 else shape.max_positions
    return Capacity(
        gpus=config.gpus,
        gpu_gib=gpu_gib,
        weights_gib=weights,
        other_gib=other,
        kv_gib=kv_gib,
        kv_bytes_per_token=bytes_per_token,
        kv_tokens=tokens,
        max_model_len=length,
        max_concurrency=_concurrency(shape, tokens, length),
    )


def _concurrency(shape: ModelShape, tokens: int, length: int | None) -> float | None:
    """Layers with a sliding window keep only the window's tokens of each request."""
    if not length:
        return None
    kept = min(length, shape.window) if shape.window else length
    windowed = shape.window_layers / shape.layers
    return tokens / (length * (1 - windowed) + kept * windowed)


def _other_gib(config: EngineConfig, shape: ModelShape, known: Mapping[str, FlagValue], *, tensor: int) -> float:
    """Context, graphs, and the larger of two peaks: a full step of activations, or the sampler's logits."""
    tokens, seqs = _whole(config, known, "max-num-batched-tokens"), _whole(config, known, "max-num-seqs")
    inner = shape.intermediate if not shape.experts else shape.hidden * 2
    activations = tokens * shape.dtype_bytes * (3 * inner / tensor + 2 * shape.hidden)
    sampler = min(seqs, tokens) * shape.vocabulary * _SAMPLER_BYTES_PER_LOGIT
    graphs = 0.0
    if config.flags.get("enforce-eager") is not True:
        largest = config.flags.get("max-cudagraph-capture-size")
        largest = largest if isinstance(largest, int) else min(2 * seqs, 512)
        graphs = largest * _GRAPH_GIB_PER_SIZE
    communication = _COMMUNICATION_GIB if tensor > 1 else 0.0
    return _CONTEXT_GIB + graphs + communication + max(activations, sampler) / _GIB


def _number(config: EngineConfig, known: Mapping[str, FlagValue], name: str) -> float:
    value = config.flags.get(name)
    if value is None:
        value = known.get(name, _FALLBACK[name])
    return float(value) if isinstance(value, int | float) else float(str(_FALLBACK[name]))


def _whole(config: EngineConfig, known: Mapping[str, FlagValue], name: str) -> int:
    return max(1, int(_number(config, known, name)))
