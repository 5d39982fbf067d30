"""Points from Optuna's samplers, which are shown a part of the study only.

One suggestion of TPE costs 20 ms after 100 trials and a second after 10,000; so it is asked in a study of its own, in
memory, that holds what `Knowledge.view` chose (docs/design.md, 12). What is drawn and refused stays in there: the
journal has what was launched. NSGA-II keeps its generations in the study it samples for, and is asked there.

Beside `study` the only module that imports optuna: it is the same affair, cut in two.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Literal

import optuna
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.search.points import choose
from autotune.search.telling import Told
from autotune.spec.space import Point, SearchSpace

_STATES = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "fail": TrialState.FAIL}

Drawn = Trial
"""A trial of Optuna's, for those who don't import it."""

SamplerOf = Callable[[int], BaseSampler]
"""By the number of the draw: a fresh one each time, so that its random state doesn't depend on earlier draws."""


def sampler_of(name: Literal["tpe", "nsga2", "random"], *, startup: int, seed: int) -> BaseSampler:
    match name:
        case "tpe":
            with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
                return TPESampler(
                    seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=min(startup, 10)
                )
        case "nsga2":
            return NSGAIISampler(seed=seed, population_size=max(4, startup))
        case "random":
            return RandomSampler(seed=seed)


class Draws:
    """For one suggestion: `draw` until a point pleases; each that doesn't is told why with `refuse`."""

    def __init__(self, study: optuna.Study, space: SearchSpace, sampler: SamplerOf) -> None:
        self._study, self._space, self._sampler, self._count = study, space, sampler, 0

    @classmethod
    def from_part(
        cls, whole: optuna.Study, seen: Sequence[FrozenTrial], space: SearchSpace, sampler: SamplerOf
    ) -> Draws:
        part = optuna.create_study(directions=whole.directions)
        part.add_trials(seen)
        return cls(part, space, sampler)

    def draw(self) -> tuple[Trial, Point]:
        self._study.sampler = self._sampler(self._count)
        self._count += 1
        trial = self._study.ask()
        return trial, choose(trial, self._space)

    def refuse(self, trial: Trial, outcome: Told) -> None:
        close(self._study, trial, outcome)


def close(study: optuna.Study, trial: Trial, outcome: Told) -> None:
    if outcome.why is not None:
        trial.set_user_attr("why", outcome.why)
    for name, value in outcome.constraints.items():
        trial.set_constraint(name, value)
    study.tell(trial, outcome.values or None, state=_STATES[outcome.state])
