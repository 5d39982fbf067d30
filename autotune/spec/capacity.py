"""How much KV cache an engine will have: an estimate from the model's shape, made before anything is started.

It is an estimate. Weights and KV bytes follow from the shape; what vLLM needs besides is counted where it can be and
measured where it can't (`engine_memory`), on one kind of GPU and one version: how far off that is
`python -m benchmarks.memory_model` says. Another GPU, back end or version may differ by a GiB or two, hybrid and
state-space models by more. The start log of a real engine always wins (`capacity_learned`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.errors import UserError
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.engine_memory import LOADED_GIB, GraphFlags, Overhead, overhead
from autotune.spec.flag import nearest
from autotune.spec.kv_cache import kv_bytes_per_token, request_bytes
from autotune.spec.model import ModelShape
from autotune.spec.units import size_gib

_GIB = 1024**3
_FALLBACK: Mapping[str, FlagValue] = {
    "gpu-memory-utilization": 0.92,
    "max-num-batched-tokens": 8192,
    "max-num-seqs": 256,
    "tensor-parallel-size": 1,
    "pipeline-parallel-size": 1,
    "kv-cache-dtype": "auto",
}

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


def server_defaults(gpu: str) -> dict[str, FlagValue]:
    """What vLLM's API server takes on this GPU for flags that aren't given (vllm/engine/arg_utils.py,
    `get_batch_defaults`): they depend on the GPU, and a catalogue that was read without one has others.

    Raises UserError as `gpu_gib` does.
    """
    memory_gib = gpu_gib(gpu)
    if memory_gib >= 160:
        return {"max-num-batched-tokens": 16384, "max-num-seqs": 1024}
    if memory_gib >= 70 and "a100" not in gpu.lower():
        return {"max-num-batched-tokens": 8192, "max-num-seqs": 1024}
    return {"max-num-batched-tokens": 2048, "max-num-seqs": 256}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """GiB are per GPU; tokens and concurrency are those of one engine (one data-parallel rank).

    `kv_gib` may be negative: that is missing. `kv_bytes_per_request`: of one of full max-model-len (`kv_cache`), and
    `max_concurrency`: so many of them at once; None when the length isn't known.
    """

    gpus: int
    gpu_gib: float
    weights_gib: float
    other_gib: float
    kv_gib: float
    kv_bytes_per_token: float
    kv_bytes_per_request: float | None
    kv_tokens: int
    max_model_len: int | None
    max_concurrency: float | None

    @property
    def fits(self) -> bool:
        """Whether at least one request of full length has room."""
        return self.kv_gib > 0 and (self.max_concurrency is None or self.max_concurrency >= 1)


def estimate(
    config: EngineConfig, shape: ModelShape, *, gpu_gib: float, defaults: Mapping[str, FlagValue] | None = None
) -> Capacity:
    """`defaults` stand in for flags that `config` doesn't give; see this module's text for how far to trust it."""
    known = {**_FALLBACK, **(defaults or {})}
    tensor, pipeline = (_whole(config, known, f"{kind}-parallel-size") for kind in ("tensor", "pipeline"))
    quantization = config.flags.get("quantization")
    weights = shape.weight_bytes_as(str(quantization) if quantization else None) / tensor / pipeline / _GIB
    weights += shape.rotary_bytes / _GIB + LOADED_GIB
    other = _overhead(config, shape, known).total_gib
    fixed = config.flags.get("kv-cache-memory-bytes")
    if isinstance(fixed, int):
        kv_gib = fixed / _GIB
    else:
        kv_gib = gpu_gib * _number(config, known, "gpu-memory-utilization") - weights - other
    length = config.flags.get("max-model-len")
    length = length if isinstance(length, int) and length > 0 else shape.max_positions
    step_tokens = _whole(config, known, "max-num-batched-tokens")
    nothing_yet = Capacity(
        gpus=config.gpus,
        gpu_gib=gpu_gib,
        weights_gib=weights,
        other_gib=other,
        kv_gib=0.0,
        kv_bytes_per_token=kv_bytes_per_token(config, shape),
        kv_bytes_per_request=request_bytes(config, shape, length, step_tokens=step_tokens) if length else None,
        kv_tokens=0,
        max_model_len=length,
        max_concurrency=None,
    )
    return with_kv(nothing_yet, kv_gib=kv_gib)


def with_kv(capacity: Capacity, *, kv_gib: float) -> Capacity:
    """The same engine with another amount of KV cache."""
    room = max(0.0, kv_gib * _GIB)
    token, request = capacity.kv_bytes_per_token, capacity.kv_bytes_per_request
    return replace(
        capacity,
        kv_gib=kv_gib,
        kv_tokens=int(room / token) if token else 0,
        max_concurrency=room / request if request else None,
    )


def _overhead(config: EngineConfig, shape: ModelShape, known: Mapping[str, FlagValue]) -> Overhead:
    return overhead(
        shape,
        tokens=_whole(config, known, "max-num-batched-tokens"),
        sequences=_whole(config, known, "max-num-seqs"),
        tensor=_whole(config, known, "tensor-parallel-size"),
        pipeline=_whole(config, known, "pipeline-parallel-size"),
        graphs=GraphFlags.of(config.flags),
        made_up=config.flags.get("load-format") == "dummy",
    )


def _number(config: EngineConfig, known: Mapping[str, FlagValue], name: str) -> float:
    value = config.flags.get(name)
    if value is None:
        value = known.get(name, _FALLBACK[name])
    return float(value) if isinstance(value, int | float) else float(str(_FALLBACK[name]))


def _whole(config: EngineConfig, known: Mapping[str, FlagValue], name: str) -> int:
    return max(1, int(_number(config, known, name)))
