"""One configuration measured as a trial of a search would, outside of Ray."""

from __future__ import annotations

from autotune.run.engines import Engines
from autotune.spec.config import EngineConfig
from autotune.spec.problem import Problem
from autotune.trial.climb import Outcome, climb
from autotune.trial.seams import Launcher


def measured(
    config: EngineConfig, problem: Problem, *, engines: Engines, launcher: Launcher, name: str, seed: int
) -> Outcome:
    """On this machine's CPU, under the problem's workload, without limits."""
    story = climb(
        engines.resolve(config),
        problem.workload,
        name=name,
        slos=(),
        seed=seed,
        devices=("cpu",),
        launcher=launcher,
        loader=engines.loader,
        clock=engines.clock,
        cancelled=lambda: False,
    )
    while True:
        try:
            next(story)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
