"""What a kind of device can't do, whatever the model: formats that it is too old for, sizes its kernels don't take.

Dry validation by vLLM sees some of this where the device is; this is for planning elsewhere, and for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.spec.capacity import gpu_name
from autotune.spec.config import EngineConfig
from autotune.spec.model import ModelShape
from autotune.spec.space import Choice, SearchSpace

Capability = tuple[int, int]

# https://developer.nvidia.com/cuda-gpus
_CAPABILITY: Mapping[str, Capability] = {
    "V100": (7, 0),
    "T4": (7, 5),
    "A100": (8, 0),
    "A100-40": (8, 0),
    "A800": (8, 0),
    "A30": (8, 0),
    "A10": (8, 6),
    "A10G": (8, 6),
    "A40": (8, 6),
    "A6000": (8, 6),
    "RTX-3090": (8, 6),
    "L4": (8, 9),
    "L40": (8, 9),
    "L40S": (8, 9),
    "RTX-4090": (8, 9),
    "RTX-6000-ADA": (8, 9),
    "H20": (9, 0),
    "H100": (9, 0),
    "H100-NVL": (9, 0),
    "H200": (9, 0),
    "B200": (10, 0),
    "B300": (10, 3),
    "RTX-5090": (12, 0),
    "RTX-PRO-6000": (12, 0),
}

_NEEDED: Mapping[str, Capability] = {
    "awq": (7, 5),
    "experts_int8": (8, 0),
    "fbgemm_fp8": (8, 0),
    "fp8": (7, 5),
    "fp_quant": (10, 0),
    "modelopt": (8, 0),
    "mxfp4": (8, 0),
    "torchao": (7, 5),
}
"""get_min_capability in model_executor/layers/quantization/ of 0.32; some need more in releases before."""

_COMPUTES_FP8: Capability = (8, 9)
_BFLOAT16: Capability = (8, 0)
_CPU_BLOCK = 32
"""v1/attention/backends/cpu_attn.py: other sizes end in "No common block size" once the model has been loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """`platform`: cpu, cuda or rocm. `capability`: of an NVIDIA GPU, None where it isn't known."""

    platform: str
    capability: Capability | None = None


def named_capability(given: str) -> Capability | None:
    """Of "H200" or "nvidia h100 80gb"; None for what isn't known, or no NVIDIA GPU."""
    name = gpu_name(given)
    return None if name is None else _CAPABILITY.get(name)


def read_capability(text: str) -> Capability | None:
    """ "9.0" as drivers report it."""
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def beyond_device(config: EngineConfig, shape: ModelShape, device: Device) -> str | None:
    """Why no engine can run like this on such devices, or None."""
    if device.platform == "cpu":
        size = config.flags.get("block-size")
        if isinstance(size, int) and size % _CPU_BLOCK and not shape.kv_latent:
            return f"block-size {size}: on a CPU it is a multiple of {_CPU_BLOCK}"
        return None
    if device.capability is None:
        return None
    has = "{}.{}".format(*device.capability)
    dtype = str(config.flags.get("dtype"))
    if dtype == "bfloat16" and device.capability < _BFLOAT16:
        return f"dtype bfloat16 needs compute capability 8.0, and this GPU has {has}"
    method = config.flags.get("quantization") or (shape.quantization if config.model == shape.name else None)
    needed = _NEEDED.get(str(method))
    if needed is not None and device.capability < needed:
        return f"quantization {method} needs compute capability {needed[0]}.{needed[1]}, and this GPU has {has}"
    return None


def weight_only_notices(space: SearchSpace, device: Device) -> tuple[str, ...]:
    """Where fp8 weights only save memory: the GPU doesn't compute in them (platforms/cuda.py, supports_fp8)."""
    if device.capability is None or device.capability >= _COMPUTES_FP8 or not _may_quantize(space):
        return ()
    has = "{}.{}".format(*device.capability)
    return (
        f"quantization fp8 on compute capability {has} saves memory, not computing: GPUs compute in fp8 from 8.9 "
        "(L4, L40S, H100)",
    )


def _may_quantize(space: SearchSpace) -> bool:
    searched = (one.domain for one in space.dimensions if one.name == "quantization")
    return space.fixed.get("quantization") == "fp8" or any(
        isinstance(domain, Choice) and "fp8" in domain.values for domain in searched
    )
