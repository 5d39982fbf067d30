"""A small search over simulated engines, as the tests of `run` use it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from autotune.history.rundir import RunDir, RunHeader
from autotune.run.options import SearchOptions
from autotune.run.progress import Progress
from autotune.spec.catalogue import Catalogue
from autotune.spec.objective import Budget, Objective
from autotune.spec.problem import Problem
from autotune.spec.rules import Rule
from autotune.spec.space import Choice, Dimension, SearchSpace
from autotune.spec.workload import ClosedLoop, FixedLength, RequestShape, Rung, Workload

NO_FLAGS = Catalogue(vllm_version="0.32.0", platform="cuda", python=sys.executable, flags={})


def problem(*, trials: int, sizes: Sequence[int] = (1,)) -> Problem:
    space = SearchSpace(
        name="simulated",
        model="simulated",
        dimensions=(
            Dimension(name="max-num-seqs", domain=Choice(values=(4, 8, 16, 32, 64, 128))),
            Dimension(name="max-num-batched-tokens", domain=Choice(values=(64, 256, 512, 1024, 2048, 4096))),
            Dimension(name="tensor-parallel-size", domain=Choice(values=tuple(sizes))),
        ),
        rules=(Rule(text="max-num-batched-tokens >= max-num-seqs"),),
    )
    workload = Workload(
        name="short",
        shapes=(RequestShape(prompt=FixedLength(tokens=128), output=FixedLength(tokens=32)),),
        rungs=(Rung(name="steady", arrivals=ClosedLoop(concurrency=32), requests=100, duration_s=3.0),),
        reference_rungs=("steady",),
    )
    return Problem(
        space=space,
        workload=workload,
        objectives=(
            Objective(metric="output_tok_per_s_per_gpu", direction="maximize"),
            Objective(metric="ttft_p99_ms", direction="minimize"),
        ),
        slos=(),
        budget=Budget(trials=trials, wall_s=600),
        seed=1,
    )


def new_run(path: Path, of: Problem) -> RunDir:
    header = RunHeader(
        name=of.space.name,
        seed=of.seed,
        command=("vtune", "search"),
        space_text="",
        workload_text="",
        objectives=of.objectives,
        slos=of.slos,
        budget=of.budget,
        started_at=time.time(),
    )
    return RunDir.create(path, header)


def options(*, gpus: int, time_scale: float = 0.0) -> SearchOptions:
    return SearchOptions(simulate=True, simulated_gpus=gpus, time_scale=time_scale)


class Diary:
    """Keeps what a search told its watcher, with the time."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, Progress]] = []

    def __call__(self, progress: Progress) -> None:
        self.entries.append((time.time(), progress))

    def event(self, text: str) -> tuple[float, Progress]:
        return next((at, progress) for at, progress in self.entries if progress.event.startswith(text))
