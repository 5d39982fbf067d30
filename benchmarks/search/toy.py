"""Two small figures of the study alone: a toy with a forbidden zone, and how long a suggestion takes after 10,000."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from autotune.search.design import random_points
from autotune.search.study import Study, Suggestion
from autotune.spec.config import EngineConfig
from autotune.spec.measurement import Measurement
from autotune.spec.objective import Budget, Objective
from autotune.spec.problem import Problem
from autotune.spec.space import Choice, Dimension, FloatRange, IntRange, SearchSpace
from autotune.spec.verdict import Infeasible, Measured, Verdict
from autotune.spec.workload import ClosedLoop, FixedLength, RequestShape, Rung, Workload

TRIALS, LATE = 60, 20
EDGE = 0.62
TOLD = 10_000
ASKS = 200

FIRST = Objective(metric="output_tok_per_s_per_gpu", direction="maximize")
SECOND = Objective(metric="ttft_p99_ms", direction="minimize")
THIRD = Objective(metric="tpot_p99_ms", direction="minimize")
WORKLOAD = Workload(
    name="toy",
    shapes=(RequestShape(prompt=FixedLength(tokens=8), output=FixedLength(tokens=8)),),
    rungs=(Rung(name="steady", arrivals=ClosedLoop(concurrency=4), requests=100),),
    reference_rungs=("steady",),
)
TOY = SearchSpace(
    name="toy",
    model="toy",
    dimensions=(
        Dimension(name="x", domain=FloatRange(low=0.0, high=1.0)),
        Dimension(name="y", domain=FloatRange(low=0.0, high=1.0)),
    ),
)


def _problem(space: SearchSpace, objectives: tuple[Objective, ...], seed: int) -> Problem:
    return Problem(
        space=space, workload=WORKLOAD, objectives=objectives, slos=(), budget=Budget(wall_s=None), seed=seed
    )


def _measured(**values: float) -> Measured:
    return Measured(
        measurement=Measurement(
            rung="steady",
            complete=True,
            duration_s=10.0,
            requests=100,
            finished=100,
            failed=0,
            gpus=1,
            **values,  # type: ignore[arg-type]
        )
    )


def _number(config: EngineConfig, name: str, default: float) -> float:
    value = config.flags.get(name)
    return float(value) if isinstance(value, int | float) else default


def verdict(config: EngineConfig) -> Verdict:
    """x * (1 - 0.2 (y - 0.5)^2), and 1 - y; no engine where x > 0.62. The default has neither flag: 0.1, 0.1."""
    x, y = _number(config, "x", 0.1), _number(config, "y", 0.1)
    if x > EDGE:
        return Infeasible(cause="oom.profiling", evidence="toy", shortfall=min(1.0, x - EDGE))
    return _measured(output_tok_per_s_per_gpu=x * (1 - 0.2 * (y - 0.5) ** 2), ttft_p99_ms=1 - y)


def one(objectives: int, *, seed: int) -> tuple[float, float]:
    """Of one search: the share of forbidden suggestions among trials 21 to 60, and how far the best is from 0.62."""
    with tempfile.TemporaryDirectory() as folder:
        study = Study.open(
            Path(folder) / "journal",
            _problem(TOY, (FIRST, SECOND)[:objectives], seed),
            defaults={},
            study_name="toy",
        )
        forbidden, best = 0, 0.0
        for trial in range(TRIALS):
            asked = study.ask()
            assert isinstance(asked, Suggestion)
            outcome = verdict(asked.config)
            study.tell(asked.number, outcome)
            if isinstance(outcome, Measured):
                best = max(best, outcome.measurement.output_tok_per_s_per_gpu or 0.0)
            else:
                forbidden += trial >= LATE
    return forbidden / (TRIALS - LATE), 1 - best / EDGE


def figures(seeds: int) -> Mapping[str, float]:
    """Of one and of two objectives the worse: the mean share over the seeds, the median gap."""
    runs = {n: [one(n, seed=seed) for seed in range(seeds)] for n in (1, 2)}
    return {
        "oom_share_trials_21_60": max(statistics.mean(share for share, _ in found) for found in runs.values()),
        "toy_best_rel_gap": max(statistics.median(gap for _, gap in found) for found in runs.values()),
    }


LARGE = SearchSpace(
    name="large",
    model="m",
    dimensions=(
        Dimension(name="max-num-seqs", domain=IntRange(low=8, high=512, log=True)),
        Dimension(name="max-num-batched-tokens", domain=IntRange(low=512, high=32768, step=64)),
        Dimension(name="gpu-memory-utilization", domain=FloatRange(low=0.7, high=0.98)),
        Dimension(name="enable-prefix-caching", domain=Choice(values=(True, False))),
        Dimension(name="block-size", domain=Choice(values=(16, 32, 64))),
        Dimension(name="kv-cache-dtype", domain=Choice(values=("auto", "fp8"))),
        Dimension(name="tensor-parallel-size", domain=Choice(values=(1, 2, 4))),
    ),
)


def _large(config: EngineConfig) -> Verdict:
    seqs, tokens = _number(config, "max-num-seqs", 256), _number(config, "max-num-batched-tokens", 2048)
    ranks = _number(config, "tensor-parallel-size", 1)
    if seqs * tokens / ranks > 900_000:  # about 30 %
        return Infeasible(cause="oom.profiling", evidence="large", shortfall=0.1)
    return _measured(
        output_tok_per_s_per_gpu=100 * math.sqrt(seqs) * (1 + tokens / 40_000) / ranks**0.2,
        ttft_p99_ms=(100 + seqs + tokens / 50) / ranks**0.8,
        tpot_p99_ms=(8 + seqs / 20 + tokens / 900) / ranks**0.6,
    )


def suggest_p95_ms(told: int = TOLD, asks: int = ASKS) -> tuple[float, float]:
    """Of `Study.ask` after so many trials, with three objectives; and the share of the trials that failed."""
    with tempfile.TemporaryDirectory() as folder:
        problem = _problem(LARGE, (FIRST, SECOND, THIRD), 1)
        study = Study.open(Path(folder) / "journal", problem, defaults={}, study_name="large")
        source, failed = random_points(LARGE, seed=3, stream=7), 0
        for _ in range(told):
            point = next(source)
            suggestion = study._fix(study.next_number, "search", LARGE.decode(point), point)
            outcome = _large(suggestion.config)
            failed += isinstance(outcome, Infeasible)
            study.tell(suggestion.number, outcome)
        took_ms = []
        for _ in range(asks):
            begin_s = time.perf_counter()
            asked = study.ask()
            took_ms.append(1e3 * (time.perf_counter() - begin_s))
            assert isinstance(asked, Suggestion)
            study.tell(asked.number, _large(asked.config))
    return float(sorted(took_ms)[math.ceil(0.95 * asks) - 1]), failed / told
