"""What a search would do: its dimensions, what was taken out of it and why, and what it would cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, assert_never

from autotune.report.capacity_table import CapacityRow, capacity_form, capacity_table
from autotune.report.estimate import Estimate, estimate, estimate_form, points
from autotune.report.evidence import shown_value
from autotune.report.form import slo_form
from autotune.report.validation import Validation, validation_form
from autotune.spec.capacity_learned import Memory
from autotune.spec.catalogue import Catalogue
from autotune.spec.device import Capability, Device, weight_only_notices
from autotune.spec.graph_grid import grid_notices
from autotune.spec.known_bad import known_bad_notices
from autotune.spec.legality import Removed, legal_space
from autotune.spec.model import ModelShape
from autotune.spec.problem import Problem
from autotune.spec.space import Bundles, Choice, Condition, Dimension, Domain, FloatRange, IntRange
from autotune.spec.weight_blocks import expert_notices


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`problem` without what can't run; `removed`: values taken out of it. `capacity` is empty where the model's shape
    or the GPU isn't known, and `memory` None. `platform`: what it was made for. `validation`: what vLLM itself says;
    None: it wasn't asked."""

    problem: Problem
    catalogue: Catalogue
    estimate: Estimate
    platform: str
    removed: tuple[Removed, ...] = ()
    capacity: tuple[CapacityRow, ...] = ()
    memory: Memory | None = None
    gpu_gib: float | None = None
    validation: Validation | None = None

    @property
    def points(self) -> float:
        """An upper bound on the candidates; infinite where a range is continuous."""
        return points(self.problem.space)


def plan(
    problem: Problem,
    catalogue: Catalogue,
    *,
    shape: ModelShape | None,
    devices: int | None,
    gpu_gib: float | None = None,
    platform: str | None = None,
    capability: Capability | None = None,
) -> Plan:
    """Judges the space by the model's shape, and by the number of devices there are to run on and what they can do
    (None: not known). `platform`: instead of the catalogue's, to plan on one machine for another.

    Raises UserError for a value that this model can't have, EnvironmentProblem where too few GPUs leave nothing.
    """
    removed: tuple[Removed, ...] = ()
    on = platform or catalogue.platform
    notices: list[str] = []
    if shape is not None:
        device = Device(platform=on, capability=capability)
        space, removed = legal_space(
            problem.space, shape, gpus_available=devices, device=device, file=problem.space_file
        )
        problem = replace(problem, space=space)
        notices += weight_only_notices(space, device)
        notices += expert_notices(space, shape, vllm_version=catalogue.vllm_version)
    notices += grid_notices(problem.space, platform=on, vllm_version=catalogue.vllm_version)
    notices += known_bad_notices(problem)
    problem = replace(problem, notices=(*problem.notices, *notices))
    sized = gpu_gib is not None or "kv-cache-memory-bytes" in problem.space.fixed
    return Plan(
        problem=problem,
        catalogue=catalogue,
        estimate=estimate(problem, platform=on, devices=devices),
        platform=on,
        removed=removed,
        capacity=capacity_table(problem, shape, gpu_gib=gpu_gib or 0.0) if shape is not None and sized else (),
        gpu_gib=gpu_gib,
        memory=Memory(shape=shape, gpu_gib=gpu_gib, defaults=problem.defaults) if shape and gpu_gib else None,
    )


def plan_form(made: Plan) -> dict[str, Any]:
    """The answer of `vtune check --json` (docs/cli.md)."""
    problem = made.problem
    return {
        "space": problem.space.name,
        "space_file": str(problem.space_file) if problem.space_file else None,
        "workload": problem.workload.name,
        "workload_file": str(problem.workload_file) if problem.workload_file else None,
        "model": problem.space.model,
        "vllm_version": made.catalogue.vllm_version,
        "platform": made.platform,
        "objectives": [{"metric": o.metric, "direction": o.direction} for o in problem.objectives],
        "slos": [slo_form(slo) for slo in problem.slos],
        "budget": {"gpu_s": problem.budget.gpu_s, "wall_s": problem.budget.wall_s, "trials": problem.budget.trials},
        "seed": problem.seed,
        "dimensions": [dimension_form(dimension) for dimension in problem.space.dimensions],
        "points": None if math.isinf(made.points) else int(made.points),
        "fixed": dict(problem.space.fixed),
        "rules": [rule.text for rule in problem.space.rules],
        "pinned": list(problem.pinned),
        "incumbent": dict(problem.incumbent.flags) if problem.incumbent else None,
        "removed": [{"name": one.name, "value": one.value, "reason": one.reason} for one in made.removed],
        "validation": None if made.validation is None else validation_form(made.validation),
        "gpu_gib": made.gpu_gib,
        "capacity": [capacity_form(row) for row in made.capacity],
        "notices": list(problem.notices),
        "longest_request_tokens": problem.workload.longest_request_tokens,
        "estimate": estimate_form(made.estimate),
    }


def shown_domain(domain: Domain) -> str:
    match domain:
        case Choice(values=values):
            return ", ".join(shown_value("", value) for value in values)
        case IntRange(low=low, high=high, step=step, log=log):
            return f"{low} to {high}" + (f" by {step}" if step != 1 else "") + (", log" if log else "")
        case FloatRange(low=low, high=high, step=step, log=log):
            return f"{low:g} to {high:g}" + (f" by {step:g}" if step is not None else "") + (", log" if log else "")
        case Bundles(options=options):
            return ", ".join(options)
        case _:
            assert_never(domain)


def shown_condition(when: Condition | None) -> str:
    if when is None:
        return ""
    return f"{when.name} = {' or '.join(shown_value('', value) for value in when.values)}"


def dimension_form(dimension: Dimension) -> dict[str, Any]:
    """`size` null: a continuous range."""
    return {
        "name": dimension.name,
        "target": dimension.target,
        "domain": shown_domain(dimension.domain),
        "size": None if math.isinf(dimension.size) else int(dimension.size),
        "when": shown_condition(dimension.when) or None,
        "gated": dimension.gated,
    }
