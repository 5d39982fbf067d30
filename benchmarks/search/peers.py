"""How others search, as far as their documents and code say: whole trials, a fresh engine for each.

Each method suggests configurations and is told what became of them. On a machine with several GPUs the driver keeps as
many trials running as fit, where the method can suggest without waiting (`ahead`).
"""

from __future__ import annotations

import heapq
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna

from autotune.search.points import choose, every_point
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.measurement import Measurement
from autotune.spec.objective import meets
from autotune.spec.space import Choice
from benchmarks.search.machines import DEFAULTS
from benchmarks.search.problems import STOP_S, Case
from benchmarks.search.replay import looks
from benchmarks.search.runs import Event, Run
from benchmarks.search.table import Row, key_of

REPEATS_IN_A_ROW = 10
"""Suggestions of what was tried before, answered from memory at no cost, before a random one is given instead."""

Answer = Measurement | None
"""None: the engine didn't run."""


class Method:
    """Suggests and is told. `ahead`: whether it suggests while trials run."""

    ahead = True

    def __init__(self, case: Case, *, seed: int) -> None:
        self.case, self.seed, self.space = case, seed, case.problem.space
        self.rng = np.random.default_rng([seed, 0xBEE])

    def ask(self) -> EngineConfig | None:
        raise NotImplementedError

    def tell(self, config: EngineConfig, answer: Answer) -> None:
        """By default nothing is learnt."""


class Grid(Method):
    """Every point, in the order of the space."""

    def __init__(self, case: Case, *, seed: int) -> None:
        super().__init__(case, seed=seed)
        self.left: Iterator[EngineConfig] = map(self.space.decode, every_point(self.space))

    def ask(self) -> EngineConfig | None:
        return next(self.left, None)


class Random(Grid):
    """Every point, in random order."""

    def __init__(self, case: Case, *, seed: int) -> None:
        super().__init__(case, seed=seed)
        found = [self.space.decode(point) for point in every_point(self.space)]
        self.left = iter([found[index] for index in self.rng.permutation(len(found))])


class Optuna(Method):
    """Optuna as it comes: an engine that doesn't run is told as FAIL."""

    limits = False

    def __init__(self, case: Case, *, seed: int) -> None:
        super().__init__(case, seed=seed)
        directions = [objective.direction for objective in case.problem.objectives]
        self.study = optuna.create_study(directions=directions, sampler=self.sampler())
        self.open: dict[str, list[optuna.Trial]] = {}

    def sampler(self) -> optuna.samplers.BaseSampler:
        return optuna.samplers.TPESampler(seed=self.seed)

    def ask(self) -> EngineConfig | None:
        trial = self.study.ask()
        config = self.space.decode(choose(trial, self.space))
        self.open.setdefault(key_of(config), []).append(trial)
        return config

    def tell(self, config: EngineConfig, answer: Answer) -> None:
        waiting = self.open.get(key_of(config))
        if not waiting:  # a random one, given where nothing new was suggested
            return
        trial = waiting.pop(0)
        values = [] if answer is None else [answer.value(o.metric) for o in self.case.problem.objectives]
        if answer is None or any(value is None for value in values):
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return
        if self.limits:
            for slo in self.case.problem.slos:
                trial.set_constraint(slo.metric, slo.violation(answer) or 0.0)
        self.study.tell(trial, [value for value in values if value is not None])


class OptunaWithLimits(Optuna):
    """TPE that also hears of the SLOs, as constraints."""

    limits = True

    def sampler(self) -> optuna.samplers.BaseSampler:
        with warnings.catch_warnings(action="ignore"):
            return optuna.samplers.TPESampler(seed=self.seed, multivariate=True, constant_liar=True)


class Nsga2(OptunaWithLimits):
    def sampler(self) -> optuna.samplers.BaseSampler:
        return optuna.samplers.NSGAIISampler(seed=self.seed, population_size=16)


ORDER = (
    "gpu-memory-utilization",
    "max-num-seqs",
    "max-num-batched-tokens",
    "enable-prefix-caching",
    "enable-chunked-prefill",
    "long-prefill-token-threshold",
    "async-scheduling",
    "enforce-eager",
    "block-size",
    "max-cudagraph-capture-size",
    "kv-cache-dtype",
    "tensor-parallel-size",
)
"""As practitioners go about it; parallelism last, because it changes what everything before it meant."""


class Staged(Method):
    """One flag at a time from the default, keeping the best value by the first objective within the limits; again from
    the first flag while a round changes something, then random points."""

    ahead = False

    def __init__(self, case: Case, *, seed: int) -> None:
        super().__init__(case, seed=seed)
        self.story = self._story()
        self.answers: dict[str, Answer] = {}

    def ask(self) -> EngineConfig | None:
        return next(self.story, None)

    def tell(self, config: EngineConfig, answer: Answer) -> None:
        self.answers[key_of(config)] = answer

    def _story(self) -> Iterator[EngineConfig]:
        now: dict[str, FlagValue] = {}
        dimensions = sorted(self.space.dimensions, key=lambda d: ORDER.index(d.name))
        yield self._config(now)
        best = self._score(now)
        changed = True
        while changed:
            changed = False
            for dimension in dimensions:
                assert isinstance(dimension.domain, Choice)
                for value in dimension.domain.values:
                    trial = {**now, dimension.name: value}
                    if key_of(self._config(trial)) not in self.answers:
                        yield self._config(trial)
                    score = self._score(trial)
                    if score is not None and (best is None or score > best):
                        best, now, changed = score, trial, True
        yield from Random(self.case, seed=self.seed).left

    def _config(self, flags: Mapping[str, FlagValue]) -> EngineConfig:
        return EngineConfig(model=self.space.model, flags={**self.space.fixed, **nearest_default(self.case), **flags})

    def _score(self, flags: Mapping[str, FlagValue]) -> tuple[bool, float] | None:
        return score(self.case, self.answers.get(key_of(self._config(flags))))


def nearest_default(case: Case) -> dict[str, FlagValue]:
    """The default's value of every searched flag, or of those that the space has the one next to it."""
    found: dict[str, FlagValue] = {}
    for dimension in case.problem.space.dimensions:
        assert isinstance(dimension.domain, Choice)
        values, default = dimension.domain.values, DEFAULTS.get(dimension.name)
        if default in values or not isinstance(default, int | float):
            found[dimension.name] = default if default in values else values[-1]
        else:
            numbers = [value for value in values if isinstance(value, int | float)]
            found[dimension.name] = min(numbers, key=lambda value: abs(value - default))
    return found


def score(case: Case, answer: Answer) -> tuple[bool, float] | None:
    """Larger is better: within the limits first, then the first objective."""
    if answer is None:
        return None
    loss = case.problem.objectives[0].loss(answer)
    return None if loss is None else (meets(case.problem.slos, answer), -loss)


class MaxRateScript(Method):
    """As vLLM's benchmarks/auto_tune does: the highest memory utilization with which the largest batch starts, then all
    pairs of max-num-seqs and max-num-batched-tokens with it; every other flag stays at its default."""

    ahead = False
    PAIR = ("max-num-seqs", "max-num-batched-tokens")

    def __init__(self, case: Case, *, seed: int) -> None:
        super().__init__(case, seed=seed)
        self.ran: dict[str, bool] = {}
        self.story = self._story()

    def ask(self) -> EngineConfig | None:
        return next(self.story, None)

    def tell(self, config: EngineConfig, answer: Answer) -> None:
        self.ran[key_of(config)] = answer is not None

    def _values(self, name: str) -> Sequence[FlagValue]:
        return next(
            (d.domain.values for d in self.space.dimensions if d.name == name and isinstance(d.domain, Choice)), ()
        )

    def _story(self) -> Iterator[EngineConfig]:
        fixed: dict[str, FlagValue] = {**self.space.fixed, **nearest_default(self.case)}
        if parallel := self._values("tensor-parallel-size"):
            fixed["tensor-parallel-size"] = parallel[-1]
        largest = {name: self._values(name)[-1] for name in self.PAIR}
        for utilization in reversed(self._values("gpu-memory-utilization")):
            config = EngineConfig(
                model=self.space.model, flags={**fixed, **largest, "gpu-memory-utilization": utilization}
            )
            yield config
            if self.ran[key_of(config)]:
                fixed["gpu-memory-utilization"] = utilization
                break
        for seqs, budget in itertools.product(*(self._values(name) for name in self.PAIR)):
            yield EngineConfig(
                model=self.space.model, flags={**fixed, "max-num-seqs": seqs, "max-num-batched-tokens": budget}
            )


PEERS: dict[str, type[Method]] = {
    "grid": Grid,
    "random": Random,
    "tpe_restart": Optuna,
    "tpe_constrained": OptunaWithLimits,
    "nsga2": Nsga2,
    "staged": Staged,
    "max_rate_script": MaxRateScript,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    config: EngineConfig
    row: Row
    began_s: float
    answer: Answer


def drive(method: Method, rows: dict[str, Row], *, budget_gpu_s: float) -> Run:
    """Until the budget is used up: the machine is held all the while. What doesn't end in time isn't known."""
    case = method.case
    limit_s = budget_gpu_s / case.devices
    known: dict[str, Answer] = {}
    running: list[tuple[float, int, _Trial]] = []
    events: list[Event] = []
    order = itertools.count()
    now_s, free, waiting, finished = 0.0, case.devices, None, False
    while True:
        while not finished and (method.ahead or not running):
            if waiting is None:
                waiting = fresh(method, known)
            if waiting is None:
                finished = True
            elif rows[key_of(waiting)].gpus > free:
                break
            else:
                row = rows[key_of(waiting)]
                last = list(looks(case, row, seed=method.seed * 1_000_003 + next(order), every_s=None))[-1]
                trial = _Trial(config=waiting, row=row, began_s=now_s, answer=last.measurement)
                heapq.heappush(running, (now_s + last.at_s + STOP_S, next(order), trial))
                free -= row.gpus
                waiting = None
        if not running or running[0][0] > limit_s:
            break
        now_s, _, ended = heapq.heappop(running)
        free += ended.row.gpus
        known[ended.row.key] = ended.answer
        method.tell(ended.config, ended.answer)
        events.append(
            Event(
                key=ended.row.key,
                began_s=ended.began_s,
                ended_s=now_s,
                gpus=ended.row.gpus,
                kind="measured" if ended.answer is not None else "dead",
            )
        )
    best = max(known, key=lambda key: score(case, known[key]) or (False, -np.inf), default=None)
    return Run(events=tuple(events), took_s=min(limit_s, now_s if finished else limit_s), said=best)


def fresh(method: Method, known: Mapping[str, Answer]) -> EngineConfig | None:
    """The method's next configuration that wasn't tried; repeats are answered from memory."""
    for _ in range(REPEATS_IN_A_ROW):
        config = method.ask()
        if config is None:
            return None
        if key_of(config) not in known:
            return config
        method.tell(config, known[key_of(config)])
    rest = [config for config in map(method.space.decode, every_point(method.space)) if key_of(config) not in known]
    return rest[int(method.rng.integers(len(rest)))] if rest else None


def search(name: str, case: Case, rows: dict[str, Row], *, seed: int, budget_gpu_s: float) -> Run:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return drive(PEERS[name](case, seed=seed), rows, budget_gpu_s=budget_gpu_s)
