"""How many trials, engine starts and GPU-hours a search would take, before it does anything.

Times are not known before the first trial: ranges are given, and what stands in for them is said (`assumptions`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, assert_never

from autotune.report.numbers import number
from autotune.spec.config import PARALLEL_FLAGS, FlagValue
from autotune.spec.problem import Problem
from autotune.spec.space import Bundles, Choice, IntRange, SearchSpace
from autotune.spec.workload import (
    ClosedLoop,
    ConstantArrivals,
    GammaArrivals,
    Poisson,
    RampArrivals,
    Rung,
    TraceArrivals,
    Workload,
)

_START_S = {"cpu": (2.0, 45.0), "gpu": (20.0, 100.0)}
"""Seconds until an engine is healthy: CPU with and without a fork server, GPU likewise with a warm and a cold compile
cache (measured with vLLM 0.24 on an H200 and 0.32 on two CPU cores; large checkpoints take longer to load)."""
_TPOT_S = {"cpu": (0.002, 0.030), "gpu": (0.010, 0.050)}
_WARM_UP_S = (1.0, 10.0)

Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Ranges are (low, high). `launches` are engine starts, at most one per trial. `devices`: how many it was made for;
    `device_per_engine`: the mean over the parallel degrees that the space has."""

    trials: tuple[int, int]
    launches: tuple[int, int]
    trial_s: Range
    gpu_hours: Range
    wall_s: Range
    devices: int
    devices_per_engine: float
    assumptions: tuple[str, ...]


def estimate(problem: Problem, *, platform: str, devices: int | None) -> Estimate:
    """`devices` None = not known: one engine at a time is assumed. On a CPU one engine runs at a time."""
    kind = "cpu" if platform == "cpu" else "gpu"
    per_engine = mean_devices(problem.space)
    at_once = 1.0 if kind == "cpu" or devices is None else max(1.0, devices // per_engine)
    start, tpot = _START_S[kind], _TPOT_S[kind]
    load = [_load_s(problem.workload, t) for t in tpot]
    trial_s = (start[0] + _WARM_UP_S[0] + load[0], start[1] + _WARM_UP_S[1] + load[1])
    budget = problem.budget
    limits: list[Range] = [(points(problem.space) + 1, points(problem.space) + 1)]
    if budget.trials is not None:
        limits.append((budget.trials, budget.trials))
    if budget.wall_s is not None:
        limits.append((budget.wall_s * at_once / trial_s[1], budget.wall_s * at_once / trial_s[0]))
    if budget.gpu_s is not None:
        limits.append((budget.gpu_s / (trial_s[1] * per_engine), budget.gpu_s / (trial_s[0] * per_engine)))
    fewest, most = (min(limit[end] for limit in limits) for end in (0, 1))
    trials = (_at_least_one(fewest), _at_least_one(most))
    # The slow case has long trials and few of them, the quick one short trials and many: both ends come from products.
    costs = sorted((trials[0] * trial_s[1], trials[1] * trial_s[0]))
    gpu_s = [cost * per_engine for cost in costs]
    return Estimate(
        trials=trials,
        launches=trials,
        trial_s=trial_s,
        gpu_hours=(gpu_s[0] / 3600, gpu_s[1] / 3600),
        wall_s=(costs[0] / at_once, costs[1] / at_once),
        devices=devices or 1,
        devices_per_engine=per_engine,
        assumptions=(
            f"{number(start[0])} to {number(start[1])} s until an engine is healthy",
            f"{1000 * tpot[0]:g} to {1000 * tpot[1]:g} ms per output token",
            *(("one engine at a time",) if at_once == 1 else (f"{at_once:g} engines at a time",)),
        ),
    )


def points(space: SearchSpace) -> float:
    """An upper bound on the candidates: the product of the sizes, conditions and rules left aside; may be infinite."""
    return math.prod(dimension.size for dimension in space.dimensions)


def mean_devices(space: SearchSpace) -> float:
    """Devices per engine, every value of a parallel degree taken as equally likely."""
    devices = 1.0
    for name in PARALLEL_FLAGS:
        values: list[FlagValue] = [space.fixed.get(name, 1)]
        for dimension in space.dimensions:
            match dimension.domain:
                case Choice(values=choices) if dimension.name == name:
                    values = list(choices)
                case IntRange(low=low, high=high, step=step) if dimension.name == name:
                    values = list(range(low, high + 1, step))
                case Bundles(options=options) if any(name in flags for flags in options.values()):
                    values = [flags.get(name, 1) for flags in options.values()]
        degrees = [int(value) if value is not None else 1 for value in values]
        devices *= sum(degrees) / len(degrees)
    return devices


def estimate_form(found: Estimate) -> dict[str, Any]:
    """Each range as [low, high]."""
    return {
        "trials": list(found.trials),
        "launches": list(found.launches),
        "trial_s": list(found.trial_s),
        "gpu_hours": list(found.gpu_hours),
        "wall_s": list(found.wall_s),
        "devices": found.devices,
        "devices_per_engine": found.devices_per_engine,
        "assumptions": list(found.assumptions),
    }


def _load_s(workload: Workload, tpot_s: float) -> float:
    """All rungs of a trial. A goodput search is taken to need all of its rungs, at a rate as the reference rung's."""
    load_s = sum(_rung_s(rung, workload, tpot_s) for rung in workload.rungs)
    if (search := workload.goodput_search) is not None:
        reference_s = _rung_s(workload.reference, workload, tpot_s)
        one_s = search.requests * reference_s / workload.reference.requests
        load_s += search.most_rungs * max(one_s, search.duration_s)
    return load_s


def _rung_s(rung: Rung, workload: Workload, tpot_s: float) -> float:
    tokens = workload.mean_output_tokens
    match rung.arrivals:
        case ClosedLoop(concurrency=concurrency):
            return max(rung.requests * tokens * tpot_s / concurrency, rung.duration_s)
        case Poisson(rate_rps=rate) | GammaArrivals(rate_rps=rate) | ConstantArrivals(rate_rps=rate):
            sending_s = rung.requests / rate
        case RampArrivals(from_rps=first, to_rps=last, over_s=over_s):
            sent = (first + last) / 2 * over_s
            sending_s = over_s + max(0.0, rung.requests - sent) / last
        case TraceArrivals(rate_scale=scale):
            assert workload.trace is not None
            sending_s = rung.requests * workload.trace.mean_gap_s / scale
        case _:
            assert_never(rung.arrivals)
    return max(sending_s, rung.duration_s) + tokens * tpot_s


def _at_least_one(count: float) -> int:
    return max(1, round(count)) if math.isfinite(count) else 10**9
