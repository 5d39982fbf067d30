"""One configuration measured as a trial of a search would, outside of Ray."""

from __future__ import annotations

from autotune.engine.catalogue import read_catalogue
from autotune.run.engines import Engines
from autotune.spec.catalogue import Catalogue
from autotune.spec.config import EngineConfig
from autotune.spec.problem import Problem
from autotune.spec.space_file import Overrides, parse_problem, read_sources
from autotune.trial.climb import Outcome, climb
from autotune.trial.seams import Launcher


def tiny_problem() -> tuple[Problem, Catalogue]:
    """tiny-cpu as it is shipped, and the flags of the vLLM that is installed beside vtune."""
    catalogue = read_catalogue(None)
    problem = parse_problem(
        read_sources("tiny-cpu", None), catalogue=catalogue, allow_quality_loss=False, allow=(), overrides=Overrides()
    )
    return problem, catalogue


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
