"""Small problems for the search's tests, with outcomes that are computed instead of run."""

from __future__ import annotations

from autotune.search.study import SpaceExhausted, Study, Suggestion
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.measurement import Measurement
from autotune.spec.objective import Budget, Objective, Slo
from autotune.spec.problem import Problem
from autotune.spec.rules import Rule
from autotune.spec.space import Choice, Condition, Dimension, FloatRange, IntRange, SearchSpace
from autotune.spec.verdict import Dominated, Infeasible, Invalid, Measured, Verdict
from autotune.spec.workload import ClosedLoop, FixedLength, RequestShape, Rung, Workload

WORKLOAD = Workload(
    name="w",
    shapes=(RequestShape(prompt=FixedLength(tokens=8), output=FixedLength(tokens=8)),),
    rungs=(Rung(name="steady", arrivals=ClosedLoop(concurrency=4), requests=100),),
    reference_rungs=("steady",),
)
THROUGHPUT = Objective(metric="output_tok_per_s_per_gpu", direction="maximize")
LATENCY = Objective(metric="ttft_p99_ms", direction="minimize")
SLO = Slo(metric="ttft_p99_ms", limit=200.0)

DEFAULTS: dict[str, FlagValue] = {
    "max-num-seqs": 128,
    "max-num-batched-tokens": 2048,
    "enable-prefix-caching": True,
    "dtype": "auto",
}

SERVING = SearchSpace(
    name="serving",
    model="m",
    dimensions=(
        Dimension(name="max-num-seqs", domain=IntRange(low=8, high=256, log=True)),
        Dimension(name="max-num-batched-tokens", domain=IntRange(low=64, high=4096, step=64)),
        Dimension(name="enable-prefix-caching", domain=Choice(values=(True, False))),
        Dimension(name="block-size", domain=Choice(values=(None, 32, 64))),
        Dimension(
            name="long-prefill-token-threshold",
            domain=Choice(values=(0, 256)),
            when=Condition(name="enable-prefix-caching", values=(True,)),
        ),
        Dimension(name="tensor-parallel-size", domain=Choice(values=(1, 2))),
    ),
    rules=(Rule(text="max-num-batched-tokens >= max-num-seqs"),),
)
TINY = SearchSpace(
    name="tiny",
    model="m",
    dimensions=(
        Dimension(name="enable-prefix-caching", domain=Choice(values=(True, False))),
        Dimension(name="max-num-seqs", domain=IntRange(low=32, high=128, step=32)),
    ),
)
TOY = SearchSpace(
    name="toy",
    model="m",
    dimensions=(
        Dimension(name="x", domain=FloatRange(low=0.0, high=1.0)),
        Dimension(name="y", domain=FloatRange(low=0.0, high=1.0)),
    ),
)


def problem(space: SearchSpace = SERVING, **changes: object) -> Problem:
    values: dict[str, object] = {
        "space": space,
        "workload": WORKLOAD,
        "objectives": (THROUGHPUT, LATENCY),
        "slos": (SLO,),
        "budget": Budget(),
        "seed": 1,
    }
    return Problem(**(values | changes))  # type: ignore[arg-type]


def measurement(**changes: object) -> Measurement:
    values: dict[str, object] = {
        "rung": "steady",
        "complete": True,
        "duration_s": 10.0,
        "requests": 100,
        "finished": 100,
        "failed": 0,
        "gpus": 1,
    }
    return Measurement(**(values | changes))  # type: ignore[arg-type]


def number(config: EngineConfig, flag: str, default: float) -> float:
    value = config.flags.get(flag)
    return float(value) if isinstance(value, int | float) else default


def serving_verdict(config: EngineConfig, trial: int) -> Verdict:
    """Some of each kind, from the configuration and the number alone."""
    seqs, tokens = number(config, "max-num-seqs", 128), number(config, "max-num-batched-tokens", 2048)
    if seqs * tokens > 300_000:
        return Infeasible(cause="oom.profiling", evidence="OutOfMemory", shortfall=0.1)
    if trial % 7 == 5:
        return Invalid(reasons=("too few requests",))
    seen = measurement(output_tok_per_s_per_gpu=10 * seqs, ttft_p99_ms=50 + seqs + tokens / 50)
    return Dominated(by=(0,), measurement=seen) if trial % 5 == 4 else Measured(measurement=seen)


def toy_verdict(config: EngineConfig, trial: int) -> Verdict:
    """Infeasible where x > 0.62; the optimum lies at that edge."""
    x, y = number(config, "x", 0.1), number(config, "y", 0.1)
    if x > 0.62:
        return Infeasible(cause="oom.profiling", evidence="OutOfMemory", shortfall=min(1.0, x - 0.62))
    value = x * (1 - 0.2 * (y - 0.5) ** 2)
    return Measured(measurement=measurement(output_tok_per_s_per_gpu=value, ttft_p99_ms=1 - y))


def suggestion(asked: Suggestion | SpaceExhausted) -> Suggestion:
    assert isinstance(asked, Suggestion)
    return asked


def ask(study: Study) -> Suggestion:
    return suggestion(study.ask())
