"""What fits into the GPUs, for the default, the incumbent and each value that changes it: an estimate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from autotune.report.evidence import shown_value
from autotune.spec.capacity import Capacity
from autotune.spec.capacity_learned import Prediction, doomed, predict
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.model import ModelShape
from autotune.spec.problem import Problem
from autotune.spec.space import Bundles, Choice, Dimension, FloatRange, IntRange

_CHANGES_IT = (
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "gpu-memory-utilization",
    "max-model-len",
    "kv-cache-dtype",
    "quantization",
    "kv-cache-memory-bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRow:
    """`change`: what sets it apart from the default. `impossible`: why even an optimistic estimate fails."""

    change: str
    prediction: Prediction
    impossible: str | None = None

    @property
    def capacity(self) -> Capacity:
        return self.prediction.expected


def capacity_table(problem: Problem, shape: ModelShape, *, gpu_gib: float) -> tuple[CapacityRow, ...]:
    """The default first. `gpu_gib`: memory of one GPU; irrelevant where kv-cache-memory-bytes is fixed."""

    def row(change: str, config: EngineConfig) -> CapacityRow:
        found = predict(config, shape, gpu_gib=gpu_gib, defaults=problem.defaults)
        return CapacityRow(change=change, prediction=found, impossible=doomed(config, found))

    rows = [row("default", problem.space.default())]
    if problem.incumbent is not None and problem.incumbent.model == problem.space.model:
        rows.append(row("incumbent", problem.incumbent))
    for dimension in problem.space.dimensions:
        for name, config in _changed(problem, dimension):
            rows.append(row(name, config))
    return tuple(rows)


def capacity_form(row: CapacityRow) -> dict[str, Any]:
    """GiB are per GPU, tokens and concurrency of one engine."""
    found = row.capacity
    return {
        "change": row.change,
        "gpus": found.gpus,
        "weights_gib": found.weights_gib,
        "other_gib": found.other_gib,
        "kv_gib": found.kv_gib,
        "kv_gib_low": row.prediction.pessimistic.kv_gib,
        "kv_gib_high": row.prediction.optimistic.kv_gib,
        "kv_tokens": found.kv_tokens,
        "max_model_len": found.max_model_len,
        "max_concurrency": found.max_concurrency,
        "fits": found.fits,
        "impossible": row.impossible,
    }


def _changed(problem: Problem, dimension: Dimension) -> Iterator[tuple[str, EngineConfig]]:
    """One configuration per value (of a range: per end) that isn't the default's already."""
    default: Mapping[str, FlagValue] = {**problem.defaults, **problem.space.fixed}
    match dimension.domain:
        case Bundles(options=options):
            # Another checkpoint has another shape; what it needs isn't known here.
            values: list[FlagValue] = [
                name for name, flags in options.items() if set(flags) & set(_CHANGES_IT) and "model" not in flags
            ]
        case Choice(values=choices) if dimension.name in _CHANGES_IT:
            values = list(choices)
        case IntRange(low=low, high=high) | FloatRange(low=low, high=high) if dimension.name in _CHANGES_IT:
            values = [low, high]
        case Choice() | IntRange() | FloatRange():
            values = []
        case _:
            assert_never(dimension.domain)
    for value in values:
        if value is not None and default.get(dimension.name) != value:
            text = f"{dimension.name}={shown_value(dimension.name, value)}"
            yield text, problem.space.decode({dimension.name: value})
