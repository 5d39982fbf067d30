"""Which point of the space to try next: legal, new, accepted, and worth it (docs/searching.md).

Knows what was tried, what is running and what was learnt, as `study` tells it; writes nothing down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from autotune.search.design import (
    REPLACEMENTS,
    by_start,
    design_size,
    few_starts,
    initial_design,
    random_points,
)
from autotune.search.draws import Drawn, Draws
from autotune.search.feasibility import BOLD_MARGIN, Feasibility, margin_for
from autotune.search.guesses import guesses
from autotune.search.known import Knowledge
from autotune.search.points import effective_key, every_point, locate, size
from autotune.search.pool import pool
from autotune.search.proposal import Proposer
from autotune.search.telling import RULE_BROKEN, Told
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.live import LiveSplit
from autotune.spec.problem import Problem
from autotune.spec.space import Point

SamplerName = Literal["gp", "tpe", "nsga2", "random"]
"""`gp`: Gaussian processes and expected hypervolume (`proposal`); the others are Optuna's."""
Accept = Callable[[EngineConfig], bool]
Seconds = Callable[[EngineConfig], float]

ASKS = 32
"""Of the sampler, for one suggestion, before a random point is taken."""
ASKS_FOR_SIZE = 8
"""Legal suggestions of another GPU count that are turned down for one of the wanted count."""
ASKS_FOR_LIKELY = 6
"""Suggestions unlikely to start that are turned down before the nearest likely point is taken instead."""
OTHER_SIZE = 0.1
"""What a candidate of another GPU count than the wanted one is worth of itself: a change drains GPUs and actors."""
BOLD_SHARE = 0.02
"""Of the sampled suggestions, those that need not be so likely to start."""
ENUMERABLE = 20_000
"""Spaces up to this many points are listed to find the last untried ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """`drawn`: where it comes from a sampler that keeps its own trials, the trial."""

    point: Point
    drawn: Drawn | None = None


class Candidates:
    """`taken`: keys of every configuration that was suggested; `running`: points of those without a verdict yet."""

    def __init__(
        self,
        problem: Problem,
        defaults: Mapping[str, FlagValue],
        *,
        given: Sequence[EngineConfig],
        split: LiveSplit | None = None,
    ) -> None:
        self._split = split
        self._problem, self._defaults, self._seed = problem, dict(defaults), abs(problem.seed)
        self.taken: set[str] = set()
        self.running: dict[int, Point] = {}
        self.knowledge = Knowledge(problem.space, problem.objectives, problem.slos)
        self._proposer = Proposer(self.knowledge)
        self.design = self._first_points({self.key(config) for config in given})

    def decode(self, point: Point) -> EngineConfig:
        return self._problem.space.decode(point)

    def key(self, config: EngineConfig) -> str:
        return effective_key(config, self._defaults)

    def first(self, index: int, number: int, gpus: int | None, accept: Accept | None) -> Chosen | None:
        """Of the initial design; another where it is no longer fresh. None: nothing is left."""
        point = self.design[index]
        return Chosen(point=point) if self._fresh(self.decode(point), accept) else self._untried(number, gpus, accept)

    def propose(
        self, number: int, gpus: int | None, accept: Accept | None, seconds: Seconds | None = None
    ) -> Chosen | None:
        """The most promising of many points by a model of what was measured, per second that measuring it takes."""
        space, feasibility = self._problem.space, self._feasibility(number)
        points: list[Point] = []
        sizes: list[int] = []
        configs: list[EngineConfig] = []
        seen: set[str] = set()
        for point in pool(space, [k.point for k in self.knowledge.front], seed=self._seed, number=number):
            config = self.decode(point)
            key = self.key(config)
            if key not in seen and key not in self.taken and not self._breaks_rule(config):
                seen.add(key)
                points.append(point)
                sizes.append(config.gpus)
                configs.append(config)
        worth = (
            self._proposer.worth(
                points, pending=list(self.running.values()), gpus=sizes, feasibility=feasibility, number=number
            )
            if points
            else None
        )
        near: Point | None = None
        if worth is not None:
            if gpus is not None:
                worth = worth * np.where(np.array(sizes) == gpus, 1.0, OTHER_SIZE)
            if seconds is not None:
                worth = worth / np.array([seconds(config) for config in configs])
            order = np.argsort(-worth, kind="stable").tolist()
            for index in order:
                if worth[index] <= 0:
                    break
                if accept is None or accept(configs[index]):
                    return Chosen(point=points[index])
            near = points[order[0]]
        return self._untried(number, gpus, accept, feasibility=feasibility, near=near)

    def sample(self, draws: Draws, number: int, gpus: int | None, accept: Accept | None) -> Chosen | None:
        """What Optuna's sampler draws, the first that is legal, new, accepted and likely to start."""
        feasibility = self._feasibility(number)
        other: tuple[Drawn, Point] | None = None
        unlikely: list[Point] = []
        sizes = 0
        for _ in range(ASKS):
            trial, point = draws.draw()
            config = self.decode(point)
            if self._breaks_rule(config) or not (accept is None or accept(config)):
                draws.refuse(trial, RULE_BROKEN)
            elif self.key(config) in self.taken:
                draws.refuse(trial, Told(state="fail", why="tried already"))
            elif feasibility is not None and not feasibility.likely(point):
                draws.refuse(trial, Told(state="fail", why="unlikely to start"))
                unlikely.append(point)
            else:
                if other is not None:
                    draws.refuse(other[0], Told(state="fail", why=f"needs other than the {gpus} GPUs asked for"))
                if gpus is None or config.gpus == gpus:
                    return Chosen(point=point, drawn=trial)
                other = trial, point
                sizes += 1
            if sizes == ASKS_FOR_SIZE or len(unlikely) == ASKS_FOR_LIKELY:
                break
        if other is not None:
            return Chosen(point=other[1], drawn=other[0])
        return self._untried(number, gpus, accept, feasibility=feasibility, near=unlikely[0] if unlikely else None)

    def _feasibility(self, number: int) -> Feasibility | None:
        """None where nothing is known. A few suggestions are bolder, so that a wrong belief gets corrected."""
        bold = np.random.default_rng([self._seed, 0xB01D, number]).random() < BOLD_SHARE
        ran, failed = self.knowledge.view()
        return Feasibility.learn(
            self.knowledge.encoding,
            ran=[known.point for known in ran],
            failed=[known.point for known in failed],
            margin=BOLD_MARGIN if bold else margin_for(self.knowledge.outcomes),
        )

    def _untried(
        self,
        number: int,
        gpus: int | None,
        accept: Accept | None,
        *,
        feasibility: Feasibility | None = None,
        near: Point | None = None,
    ) -> Chosen | None:
        """A random point that is legal and new; of a small space, any that is left.

        If possible it is likely to start, needs the wanted number of GPUs, and lies near the point that the sampler
        wanted (a candidate for the edge of what runs).
        """
        space = self._problem.space
        random = random_points(space, seed=self._seed, stream=1 + number)
        drawn = [next(random) for _ in range(REPLACEMENTS)]
        fresh = [point for point in drawn if self._fresh(self.decode(point), accept)]
        if not fresh and size(space) <= ENUMERABLE:
            fresh = [point for point in every_point(space) if self._fresh(self.decode(point), accept)]
        if not fresh:
            return None
        if feasibility is not None:
            fresh = [point for point in fresh if feasibility.likely(point)] or fresh
        fresh = [point for point in fresh if self.decode(point).gpus == gpus] or fresh
        point = (
            fresh[0] if near is None else min(fresh, key=lambda point: self.knowledge.encoding.distance(point, near))
        )
        return Chosen(point=point)

    def _fresh(self, config: EngineConfig, accept: Accept | None) -> bool:
        new = self.key(config) not in self.taken
        return new and not self._breaks_rule(config) and (accept is None or accept(config))

    def _breaks_rule(self, config: EngineConfig) -> bool:
        return self._problem.space.broken_rule(config, self._defaults) is not None

    def _first_points(self, given_keys: set[str]) -> list[Point]:
        """What an engineer would try, filled up with points that are spread over the space."""
        space, trials = self._problem.space, self._problem.budget.trials

        def refused(point: Point) -> bool:
            config = self.decode(point)
            return self._breaks_rule(config) or self.key(config) in given_keys

        def key(point: Point) -> str:
            return self.key(self.decode(point))

        wanted = design_size(space, trials)
        start = locate(space, space.default(), self._defaults)
        guessed = guesses(space, self._problem.workload, start=start, refused=refused)[: max(1, wanted // 2)]
        spread = initial_design(space, seed=self._seed, size=wanted, refused=refused, key=key)
        if self._split is not None:
            spread = [point for point in few_starts(space, spread, self._split) if not refused(point)] + spread
        seen = {key(point) for point in guessed}
        fresh = {key(point): point for point in spread if key(point) not in seen}
        design = guessed + list(fresh.values())[: wanted - len(guessed)]
        # Grouped by engine size, the default's first: a change of size costs the searcher a drain and new actors.
        first = space.default().gpus
        grouped = sorted(design, key=lambda point: (self.decode(point).gpus != first, self.decode(point).gpus))
        return grouped if self._split is None else by_start(grouped, self.decode, self._split)
