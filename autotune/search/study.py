"""What to try next, and learning from how it went: the module that knows Optuna (`draws` is its other half).

Numbers are ours, consecutive from 0 (Optuna's own also count the asks that were refused). Every ask is a pure function
of the seed, its number and what was told before, so a search can be replayed.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
from optuna.samplers import BaseSampler, PartialFixedSampler, RandomSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.errors import UserError
from autotune.history.record import Role
from autotune.search.candidates import Accept as Accept
from autotune.search.candidates import Candidates, Seconds
from autotune.search.candidates import SamplerName as SamplerName
from autotune.search.draws import Draws, close, sampler_of
from autotune.search.known import Known
from autotune.search.points import choose, locate
from autotune.search.telling import Told, told
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.live import LiveSplit
from autotune.spec.problem import Problem
from autotune.spec.space import Point
from autotune.spec.verdict import Infeasible, Verdict, verdict_name

REPEATS: tuple[Role, ...] = ("baseline", "screen", "confirm")
"""Roles of further runs of known configurations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """`point` is empty for a default or incumbent that isn't a point of the space, and for repeats. `attempt` counts
    from 1. Suggestions of one `group` (the number of its first) get the same traffic."""

    number: int
    role: Role
    config: EngineConfig
    point: Point
    attempt: int = 1
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceExhausted:
    """No configuration is left that is new, keeps the rules and is accepted."""

    tried: int


class Study:
    """One search. Not thread-safe; one process at a time writes a journal (the run's lock sees to that)."""

    def __init__(
        self,
        study: optuna.Study,
        problem: Problem,
        *,
        sampler: SamplerName,
        defaults: Mapping[str, FlagValue],
        split: LiveSplit | None = None,
    ) -> None:
        self._study, self._problem, self._sampler, self._defaults = study, problem, sampler, dict(defaults)
        self._seed = abs(problem.seed)
        self._live: dict[int, Trial] = {}
        self._given: list[tuple[Role, EngineConfig]] = [("default", problem.space.default())]
        if problem.incumbent is not None:
            self._given.append(("incumbent", problem.incumbent))
        self._candidates = Candidates(problem, defaults, given=[config for _, config in self._given], split=split)
        self._latest: dict[int, int] = {}
        self._roles: dict[int, Role] = {}
        self._attempts: dict[int, int] = {}
        self._shown: dict[int, int] = {}
        """Of what is known (by identity), Optuna's number."""
        trials = study.get_trials(deepcopy=False)
        for trial in trials:
            if "number" in trial.user_attrs:
                attrs = trial.user_attrs
                self._remember(attrs["number"], trial.number, attrs["role"], _config(trial), trial.params)
        ended = [trial for trial in trials if trial.datetime_complete is not None]
        for trial in sorted(ended, key=lambda trial: (trial.datetime_complete, trial.number)):
            self._candidates.running.pop(trial.user_attrs.get("number", -1), None)
            if (known := self._known_of(trial)) is not None:
                self._know(trial.number, known)

    def _known_of(self, trial: FrozenTrial) -> Known | None:
        """As it was written down; of a journal from before that was done, as much as Optuna keeps."""
        attrs = trial.user_attrs
        if "known" in attrs:
            return Known.read(trial.params, attrs["known"])
        if not trial.params or attrs.get("role", "search") in REPEATS or "number" not in attrs:
            return None
        if trial.state is TrialState.COMPLETE:
            values = dict(zip((o.metric for o in self._problem.objectives), trial.values, strict=True))
            return Known(point=trial.params, ran=True, values=values)
        return Known(point=trial.params, ran=False) if "feasible" in trial.constraints else None

    @classmethod
    def open(
        cls,
        journal: Path,
        problem: Problem,
        *,
        sampler: SamplerName = "gp",
        defaults: Mapping[str, FlagValue],
        study_name: str,
        split: LiveSplit | None = None,
    ) -> Study:
        """Begins a study, or goes on with the one in `journal`. `defaults` are vLLM's own flag values;
        with `split` engines outlive their trials, and the initial design is one that few starts measure.

        Raises UserError when the journal can't be read or was written for other objectives.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        _mend(journal)
        directions = [objective.direction for objective in problem.objectives]
        metrics = [objective.metric for objective in problem.objectives]
        try:
            study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(journal))),
                study_name=study_name,
                directions=directions,
                load_if_exists=True,
            )
        except ValueError as error:
            raise UserError(f"can't be read: {error}", file=journal, remedy="begin a new run") from error
        if study.metric_names is None:
            with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
                study.set_metric_names(metrics)
        if [d.name.lower() for d in study.directions] != directions or study.metric_names != metrics:
            raise UserError(
                "was written for other objectives",
                file=journal,
                value=study.metric_names,
                remedy="begin a new run",
            )
        return cls(study, problem, sampler=sampler, defaults=defaults, split=split)

    @property
    def next_number(self) -> int:
        """The number that the next `ask` will give."""
        return len(self._latest)

    @property
    def running(self) -> list[int]:
        """Numbers that were suggested and not told since."""
        trials = self._study.get_trials(deepcopy=False)
        return sorted(n for n, trial in self._latest.items() if trials[trial].state is TrialState.RUNNING)

    @property
    def roles(self) -> Mapping[int, Role]:
        """Of every number given so far."""
        return self._roles

    @property
    def candidates(self) -> int:
        """Numbers given to candidates, default and incumbent included; the rest are repeats."""
        return sum(role not in REPEATS for role in self._roles.values())

    def repeat(self, role: Role, config: EngineConfig, *, group: int | None = None) -> Suggestion:
        """One more run of a known configuration, under the next number. It is written down like a candidate, so that a
        killed search goes on with it, but the sampler hears of its result only when its engine died: it would take a
        point that was measured ten times for ten good points. Raises ValueError for a role that candidates have."""
        if role not in REPEATS:
            raise ValueError(f"{role} is no role of repeats")
        number = self.next_number
        return self._fix(number, role, config, None, group=group)

    def ask(
        self, *, gpus: int | None = None, accept: Accept | None = None, seconds: Seconds | None = None
    ) -> Suggestion | SpaceExhausted:
        """The default first, then the incumbent, the initial design, and from then on what the sampler suggests.

        Never breaks a rule of the space, is never refused by `accept` (which may depend on the configuration and on
        what was told before) and never repeats a configuration; default and incumbent are given whatever they are.
        `seconds`: what measuring a configuration would take now, start included; the `gp` sampler then suggests what is
        worth most per second. With `gpus`, sampled suggestions are turned down for one that needs that many devices;
        after some asks another size may come.
        """
        number, place = self.next_number, self.candidates
        if place < len(self._given):
            role, config = self._given[place]
            return self._fix(number, role, config, locate(self._problem.space, config, self._defaults))
        index, candidates = place - len(self._given), self._candidates
        if index < len(candidates.design):
            chosen = candidates.first(index, number, gpus, accept)
        elif self._sampler == "gp":
            chosen = candidates.propose(number, gpus, accept, seconds)
        else:
            chosen = candidates.sample(self._draws(number), number, gpus, accept)
        if chosen is None:
            return SpaceExhausted(tried=len(candidates.taken))
        config = candidates.decode(chosen.point)
        if chosen.drawn is not None and self._sampler == "nsga2":  # its own trial, with its generation
            return self._register(chosen.drawn, number, "search", config, chosen.point)
        return self._fix(number, "search", config, chosen.point)

    def _draws(self, number: int) -> Draws:
        def sampler(draw: int) -> BaseSampler:
            assert self._sampler != "gp"
            seed = int(np.random.SeedSequence([self._seed, number, draw]).generate_state(1)[0])
            return sampler_of(self._sampler, startup=len(self._candidates.design), seed=seed)

        if self._sampler == "nsga2":
            return Draws(self._study, self._problem.space, sampler)
        trials = self._study.get_trials(deepcopy=False)
        ran, failed = self._candidates.knowledge.view()
        shown = {self._shown[id(known)] for known in [*ran, *failed]} | {
            self._latest[n] for n in self._candidates.running
        }
        return Draws.from_part(self._study, [trials[n] for n in sorted(shown)], self._problem.space, sampler)

    def retry(self, number: int) -> Suggestion:
        """The same configuration under the same number, as the next attempt. An attempt still open is closed."""
        earlier = self._study.get_trials(deepcopy=False)[self._latest[number]]
        if earlier.state is TrialState.RUNNING:
            close(self._study, self._trial(number), Told(state="fail", why="given up for another attempt"))
        attrs = earlier.user_attrs
        return self._fix(number, attrs["role"], _config(earlier), earlier.params or None, group=attrs.get("group"))

    def tell(self, number: int, verdict: Verdict) -> None:
        """Teaches the sampler (`telling`); write the history first. Raises ValueError for a number told before."""
        trial = self._trial(number)
        outcome = told(verdict, self._problem.objectives, self._problem.slos)
        if self._roles[number] in REPEATS:
            if isinstance(verdict, Infeasible):
                self._learn(_config(trial), outcome)
            outcome = Told(state="fail", why="a repeat")
        if (
            outcome.state == "complete"
            and self._sampler == "nsga2"
            and self._problem.space.dimensions
            and not trial.params
        ):
            # Its crossover searches the parameters that all COMPLETE trials share, and this one has none.
            outcome = Told(state="fail", why="measured, but no point of the space")
        trial.set_user_attr("verdict", verdict_name(verdict))
        known = Known.of(trial.params, verdict, self._problem.objectives, self._problem.slos)
        if known is not None and trial.params and self._roles[number] not in REPEATS:
            trial.set_user_attr("known", known.form())
            self._know(trial.number, known)
        close(self._study, trial, outcome)
        self._live.pop(number, None)
        self._candidates.running.pop(number, None)

    def _know(self, optuna_number: int, known: Known) -> None:
        self._candidates.knowledge.add(known)
        self._shown[id(known)] = optuna_number

    def _learn(self, config: EngineConfig, outcome: Told) -> None:
        """Of an engine that died when it was run again: a point beside the one that was told when it still ran."""
        point = locate(self._problem.space, config, self._defaults)
        if point:
            trial = self._new_trial(self._fixed(point))
            known = Known(point=choose(trial, self._problem.space), ran=False)
            trial.set_user_attr("known", known.form())
            self._know(trial.number, known)
            close(self._study, trial, outcome)

    def abandon_running(self) -> list[int]:
        """Closes what a killed driver left open and returns its numbers, for `retry`. What the history knows a verdict
        of should be told before."""
        numbers = self.running
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            close(self._study, self._reopen(trial), Told(state="fail", why="abandoned"))
        self._live.clear()
        self._candidates.running.clear()
        return numbers

    def _fix(
        self, number: int, role: Role, config: EngineConfig, point: Point | None, *, group: int | None = None
    ) -> Suggestion:
        """Suggests `config`. Outside the space it becomes a trial without parameters: a few true ones would split
        TPE's joint model of all of them (optuna: _SearchSpaceGroup.add_distributions)."""
        trial = self._new_trial(self._fixed(point or {}))
        chosen = {} if point is None else choose(trial, self._problem.space)
        if group is not None:
            trial.set_user_attr("group", group)
        return self._register(trial, number, role, config, chosen, group=group)

    def _register(
        self,
        trial: Trial,
        number: int,
        role: Role,
        config: EngineConfig,
        point: Point,
        *,
        group: int | None = None,
    ) -> Suggestion:
        trial.set_user_attr("role", role)
        content = {"model": config.model, "flags": dict(config.flags), "env": dict(config.env)}
        trial.set_user_attr("config", json.dumps(content, sort_keys=True))
        trial.set_user_attr("number", number)
        self._live[number] = trial
        self._remember(number, trial.number, role, config, point)
        return Suggestion(
            number=number, role=role, config=config, point=point, attempt=self._attempts[number], group=group
        )

    def _remember(self, number: int, optuna_number: int, role: Role, config: EngineConfig, point: Point) -> None:
        self._latest[number] = optuna_number
        self._roles[number] = role
        self._attempts[number] = self._attempts.get(number, 0) + 1
        self._candidates.taken.add(self._candidates.key(config))
        if point and role not in REPEATS:
            self._candidates.running[number] = point

    def _fixed(self, point: Point) -> BaseSampler:
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            return PartialFixedSampler(dict(point), RandomSampler(seed=self._seed))

    def _new_trial(self, sampler: BaseSampler) -> Trial:
        self._study.sampler = sampler
        return self._study.ask()

    def _trial(self, number: int) -> Trial:
        if number not in self._live:
            self._live[number] = self._reopen(self._study.get_trials(deepcopy=False)[self._latest[number]])
        return self._live[number]

    def _reopen(self, trial: FrozenTrial) -> Trial:
        if trial.state.is_finished():
            raise ValueError(f"trial {trial.user_attrs.get('number')} was told already")
        self._study.sampler = RandomSampler(seed=self._seed)
        return Trial(self._study, trial._trial_id)


def _config(trial: FrozenTrial | Trial) -> EngineConfig:
    content = json.loads(trial.user_attrs["config"])
    return EngineConfig(model=content["model"], flags=content["flags"], env=content["env"])


def _mend(journal: Path) -> None:
    """Takes away what a killed writer can leave: half a line (the next append would join it and make the journal
    unreadable) and Optuna's lock file (it would be waited for, 30 s)."""
    if journal.exists():
        content = journal.read_bytes()
        if not content.endswith(b"\n") and content:
            with journal.open("r+b") as file:
                file.truncate(content.rfind(b"\n") + 1)
    lock = journal.with_name(journal.name + ".lock")
    if lock.is_symlink() and time.time() - lock.lstat().st_mtime > 2.0:
        lock.unlink(missing_ok=True)
