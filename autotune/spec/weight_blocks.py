"""Checkpoints whose weights share a scale in blocks (fp8 of 128 x 128): tensor parallelism must not cut a block.

vLLM finds out while it makes the weights, minutes into a start, and dry validation doesn't see it
(model_executor/layers/quantization/utils/fp8_utils.py, validate_fp8_block_shape and validate_fp8_block_shape_moe).
"""

from __future__ import annotations

from autotune.spec.catalogue import release
from autotune.spec.model import ModelShape
from autotune.spec.space import Choice, SearchSpace

_REFINES_SINCE = (0, 32)
"""vLLM 0.32 divides the blocks of experts where it must (fused_moe/oracle/fp8.py, resolve_fp8_moe_weight_block_shape);
the releases before weren't all looked at."""


def cut_blocks(tensor: int, shape: ModelShape) -> str | None:
    """Why `tensor` ranks can't share a dense model's layers; None where they can. The second matrix of a feed-forward
    layer is cut along its columns, and vLLM allows that no exception."""
    if shape.quantization_block is None or tensor == 1 or shape.experts:
        return None
    _, columns = shape.quantization_block
    if shape.intermediate % (tensor * columns) == 0:
        return None
    return (
        f"tensor-parallel-size {tensor} cuts the {shape.intermediate} columns of a layer of {shape.name} within the "
        f"checkpoint's {shape.quantization} blocks of {columns}"
    )


def expert_notices(space: SearchSpace, shape: ModelShape, *, vllm_version: str) -> tuple[str, ...]:
    """Degrees that cut experts within blocks: older vLLM refuses them unless experts stay whole."""
    block = shape.quantization_block
    if block is None or not shape.experts or release(vllm_version) >= _REFINES_SINCE:
        return ()
    if space.fixed.get("enable-expert-parallel") is True:
        return ()
    cut = [tensor for tensor in _degrees(space) if any(shape.expert_intermediate % (tensor * side) for side in block)]
    if not cut:
        return ()
    return (
        f"tensor-parallel-size {' and '.join(map(str, cut))} cuts experts of {shape.expert_intermediate} columns "
        f"within the checkpoint's blocks of {block[0]} x {block[1]}: vLLM before 0.32 may refuse it while it loads the "
        "weights, unless enable-expert-parallel keeps experts whole",
    )


def _degrees(space: SearchSpace) -> list[int]:
    name = "tensor-parallel-size"
    values = [space.fixed.get(name)]
    for dimension in space.dimensions:
        if dimension.name == name and isinstance(dimension.domain, Choice):
            values += dimension.domain.values
    return [value for value in values if isinstance(value, int) and value > 1]
