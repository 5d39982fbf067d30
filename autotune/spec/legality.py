"""What a model's shape and the number of GPUs forbid, judged before a search: values are removed from the space.

The rules are vLLM's own (vllm/config/model.py, verify_with_parallel_config; vllm/distributed/utils.py, divide;
those of quantization and devices: spec/weight_blocks.py, spec/device.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from autotune.errors import EnvironmentProblem, UserError
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.device import Device, beyond_device
from autotune.spec.model import ModelShape
from autotune.spec.problem import Problem
from autotune.spec.space import Bundles, Choice, Dimension, FloatRange, IntRange, SearchSpace
from autotune.spec.weight_blocks import cut_blocks

_JUDGED = (
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "data-parallel-size",
    "max-model-len",
    "model",
    "quantization",
    "dtype",
    "block-size",
)
_MOST_DEGREES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A value that was taken out of dimension `name`, and why."""

    name: str
    value: FlagValue
    reason: str


def illegal(
    config: EngineConfig, shape: ModelShape, gpus_available: int | None, device: Device | None = None
) -> str | None:
    """Why no engine can run like this, or None. `gpus_available`, `device` None: not known, so not judged."""
    tensor, pipeline = config.degree("tensor-parallel-size"), config.degree("pipeline-parallel-size")
    if shape.heads % tensor:
        return f"tensor-parallel-size {tensor} doesn't divide the {shape.heads} attention heads of {shape.name}"
    if not _fits(tensor, shape):
        return f"tensor-parallel-size {tensor} and {shape.kv_heads} KV heads of {shape.name}: one must divide the other"
    if config.model == shape.name and (cut := cut_blocks(tensor, shape)) is not None:
        return cut
    if pipeline > shape.layers:
        return f"pipeline-parallel-size {pipeline} is more than the {shape.layers} layers of {shape.name}"
    length = config.flags.get("max-model-len")
    if isinstance(length, int) and shape.max_positions and length > shape.max_positions:
        return f"max-model-len {length} is more than the {shape.max_positions} positions of {shape.name}"
    if gpus_available is not None and config.gpus > gpus_available:
        there = "is 1" if gpus_available == 1 else f"are {gpus_available}"
        return f"one engine would need {config.gpus} GPUs and there {there}"
    return None if device is None else beyond_device(config, shape, device)


def legal_space(
    space: SearchSpace,
    shape: ModelShape,
    *,
    gpus_available: int | None,
    device: Device | None = None,
    file: object = None,
) -> tuple[SearchSpace, tuple[Removed, ...]]:
    """The space without values that no engine can have here. A dimension with one value left becomes fixed.

    Raises UserError for a value that somebody wrote down and this model can't have (3 in [1, 2, 3] for 4 heads), and
    when no value of a range is legal. What only this machine forbids (4 GPUs of 2, a format its GPUs are too old for)
    and what lies inside a range is removed; EnvironmentProblem when nothing is left because of the GPUs. Values are
    judged one at a time beside the fixed ones: pairs that ask for too many GPUs together stay, for whoever suggests
    them to reject with `illegal`.
    """
    _judge_fixed(space, shape, gpus_available, device, file)
    removed: list[Removed] = []
    kept: list[Dimension] = []
    fixed = dict(space.fixed)
    for dimension in space.dimensions:
        values = _values(dimension)
        if values is None:
            kept.append(dimension)
            continue
        if isinstance(dimension.domain, Choice):
            _judge_written(space, dimension, values, shape, file)
        reasons = {value: _reason(space, dimension, value, shape, gpus_available, device) for value in values}
        good = [value for value in values if reasons[value] is None]
        if not good:
            raise _nothing_left(dimension, reasons, shape, gpus_available, file)
        bad = [
            Removed(name=dimension.name, value=value, reason=str(reasons[value])) for value in values if reasons[value]
        ]
        removed += bad
        if bad and len(good) == 1 and dimension.target == "flag" and dimension.when is None:
            fixed[dimension.name] = good[0]
        else:
            kept.append(dimension if not bad else replace(dimension, domain=_only(dimension, good)))
    kept = _without_lost_conditions(kept, fixed)
    return replace(space, dimensions=tuple(kept), fixed=fixed), tuple(removed)


def legal_problem(problem: Problem, shape: ModelShape, *, gpus_available: int | None) -> Problem:
    """The problem with its legal space, and a notice for everything that was removed. Raises as `legal_space` does."""
    space, removed = legal_space(problem.space, shape, gpus_available=gpus_available, file=problem.space_file)
    notices = tuple(f"{one.name} {one.value} isn't searched: {one.reason}" for one in removed)
    return replace(problem, space=space, notices=problem.notices + notices)


def _judge_fixed(
    space: SearchSpace, shape: ModelShape, gpus_available: int | None, device: Device | None, file: object
) -> None:
    reason = illegal(space.default(), shape, None)
    if reason is not None:
        name = next((name for name in _JUDGED if reason.startswith(name) and name in space.fixed), None)
        value = space.fixed[name] if name else space.model
        raise _illegal_value(reason, f"fixed.{name}" if name else "model", value, shape, file)
    if gpus_available is not None and space.default().gpus > gpus_available:
        raise _too_few(f"the space's fixed flags need {space.default().gpus} GPUs", gpus_available)
    beyond = None if device is None else beyond_device(space.default(), shape, device)
    if beyond is not None:
        where = f"{file}: " if file is not None else ""
        raise EnvironmentProblem(f"{where}the default can't run here: {beyond}. Run it elsewhere, or change the space")


def _judge_written(
    space: SearchSpace, dimension: Dimension, values: list[FlagValue], shape: ModelShape, file: object
) -> None:
    for value in values:
        reason = _reason(space, dimension, value, shape, None)
        if reason is not None:
            raise _illegal_value(reason, f"search.{dimension.name}", value, shape, file)


def _illegal_value(reason: str, key: str, value: FlagValue, shape: ModelShape, file: object) -> UserError:
    if "tensor-parallel-size" in key:
        legal = _listed(degree for degree in range(1, shape.heads + 1) if _fits(degree, shape))
        remedy = f"write values among {legal}"
    elif "max-model-len" in key:
        remedy = f"write {shape.max_positions} or less"
    elif "pipeline-parallel-size" in key:
        remedy = f"write {shape.layers} or less"
    else:
        remedy = "change this value"
    return UserError(reason, file=file, key=key, value=value, remedy=remedy)


def _reason(
    space: SearchSpace,
    dimension: Dimension,
    value: FlagValue,
    shape: ModelShape,
    gpus_available: int | None,
    device: Device | None = None,
) -> str | None:
    if isinstance(dimension.domain, Bundles) and "model" in dimension.domain.options[str(value)]:
        return None  # another checkpoint may have another shape
    return illegal(space.decode({dimension.name: value}), shape, gpus_available, device)


def _nothing_left(
    dimension: Dimension,
    reasons: Mapping[FlagValue, str | None],
    shape: ModelShape,
    gpus_available: int | None,
    file: object,
) -> UserError | EnvironmentProblem:
    texts = [str(reason) for reason in reasons.values()]
    if gpus_available is not None and all("one engine would need" in text for text in texts):
        return _too_few(f"every value of {dimension.name} needs more", gpus_available)
    return _illegal_value(texts[0], f"search.{dimension.name}", ", ".join(map(str, reasons)), shape, file)


def _too_few(problem: str, gpus_available: int) -> EnvironmentProblem:
    have = "no GPU" if gpus_available == 0 else f"{gpus_available} GPU{'s' if gpus_available > 1 else ''}"
    return EnvironmentProblem(
        f"{problem} and this machine has {have}. Run it where there are more, or join a cluster with --address"
    )


def _values(dimension: Dimension) -> list[FlagValue] | None:
    """The values to judge; None for a dimension that shape and GPUs say nothing about."""
    match dimension.domain:
        case Bundles(options=options):
            touched = {flag for flags in options.values() for flag in flags}
            return list(options) if touched & set(_JUDGED) else None
        case Choice(values=values) if dimension.name in _JUDGED:
            return list(values)
        case IntRange(low=low, high=high, step=step) if dimension.name in _JUDGED and dimension.size <= _MOST_DEGREES:
            return list(range(low, high + 1, step))
        case Choice() | IntRange() | FloatRange():
            return None
        case _:
            assert_never(dimension.domain)


def _only(dimension: Dimension, good: list[FlagValue]) -> Choice | Bundles:
    if isinstance(dimension.domain, Bundles):
        return Bundles(options={str(name): dimension.domain.options[str(name)] for name in good})
    return Choice(values=tuple(good))


def _without_lost_conditions(dimensions: list[Dimension], fixed: Mapping[str, FlagValue]) -> list[Dimension]:
    """Dimensions whose condition can no longer hold are dropped; one that always holds loses it."""
    kept: list[Dimension] = []
    for dimension in dimensions:
        condition = dimension.when
        if condition is None:
            kept.append(dimension)
            continue
        other = next((one for one in dimensions if one.name == condition.name), None)
        if other is None and condition.name in fixed:
            if fixed[condition.name] in condition.values:
                kept.append(replace(dimension, when=None))
            continue
        if (
            other is not None
            and isinstance(other.domain, Choice)
            and not set(other.domain.values) & set(condition.values)
        ):
            continue
        kept.append(dimension)
    return kept


def _fits(tensor: int, shape: ModelShape) -> bool:
    """Heads are split; KV heads are split, or repeated when there are fewer of them than ranks."""
    if shape.heads % tensor:
        return False
    return bool(shape.kv_latent) or shape.kv_heads % tensor == 0 or tensor % shape.kv_heads == 0


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)
