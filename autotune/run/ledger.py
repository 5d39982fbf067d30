"""What the driver knows while a search runs: finished and live trials, and what is left of the budget. No Ray here."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.engine.failure_classes import REMEDIES
from autotune.history.record import TrialRecord
from autotune.run.progress import Progress, RunningTrial
from autotune.run.task import TrialTask
from autotune.search.confirmation import CANDIDATE_ROLES, CONTENDERS, FINALISTS, SCREEN_RUNS, cv_of, repeats_for
from autotune.search.dominance import front
from autotune.search.study import Suggestion
from autotune.spec.measurement import Measurement
from autotune.spec.problem import Problem
from autotune.spec.verdict import Dominated, Measured, verdict_name
from autotune.trial.climb import Snapshot

CONFIRMATION_SHARE = 0.3
"""Of the budget, at most, is kept for the confirmation: what was found is worth little while nobody knows whether it is
real."""
TURNAROUND_S = 1.0
SAME_FAILURE_LIMIT = 6
"""Identical failures in a row that stop a search: it isn't learning."""
SAME_SHORTAGE_LIMIT = 20
"""The same for a lack of memory while nothing has run yet: a search that begins with engines that are too small for the
model finds its way to larger ones."""


@dataclass(slots=True, kw_only=True)
class LiveTrial:
    task: TrialTask
    suggestion: Suggestion
    since: float
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(stage="starting"))
    node: str | None = None
    actor: str | None = None
    looks: int = 0
    dominated: Dominated | None = None


@dataclass(slots=True, kw_only=True)
class Ledger:
    """`spent_before_s`, `offered_before_gpu_s` (None = not known) and earlier `records` come from the sessions that a
    resumed run had."""

    problem: Problem
    devices: int
    spent_before_s: float = 0.0
    offered_before_gpu_s: float | None = 0.0
    records: list[TrialRecord] = field(default_factory=list)
    live: dict[str, LiveTrial] = field(default_factory=dict)
    actors: set[str] = field(default_factory=set)
    interrupted: bool = False
    exhausted: bool = False
    halted: str = ""
    """Why the search gave up by itself (the same failure again and again)."""
    _front: tuple[int, tuple[int, ...]] = (-1, ())
    _cvs: tuple[int, dict[str, float]] = field(default_factory=lambda: (-1, {}))
    clock: Callable[[], float] = time.monotonic
    began: float = field(default_factory=time.monotonic)

    # ------------------------------------------------------------ the budget

    @property
    def elapsed_s(self) -> float:
        return self.spent_before_s + self.clock() - self.began

    @property
    def offered_gpu_s(self) -> float | None:
        """Devices x wall seconds, used or not."""
        before = self.offered_before_gpu_s
        return None if before is None else before + self.devices * (self.clock() - self.began)

    @property
    def gpu_s(self) -> float:
        """What trials have booked: the budget is in these."""
        return sum(record.gpu_s for record in self.records)

    def gpu_s_left(self) -> float | None:
        limit = self.problem.budget.gpu_s
        return None if limit is None else max(0.0, limit - self.gpu_s)

    def wall_s_left(self) -> float | None:
        limit = self.problem.budget.wall_s
        return None if limit is None else max(0.0, limit - self.elapsed_s)

    def trials_left(self) -> int | None:
        """How many more candidates may be started: repeats of the baseline and the confirmation don't count."""
        limit = self.problem.budget.trials
        if limit is None:
            return None
        begun = {r.trial for r in self.records if r.role in CANDIDATE_ROLES}
        begun |= {live.task.trial for live in self.live.values() if live.suggestion.role in CANDIDATE_ROLES}
        return max(0, limit - len(begun))

    def over(self) -> bool:
        """Whether nothing may be started any more, whatever it is."""
        return bool(self.interrupted or self.halted) or self._spent(0.0)

    def search_over(self, *, slots: int, confirm: bool) -> bool:
        """Whether no new candidate may be started: what is left is for the confirmation, if there is to be one."""
        if self.over() or self.exhausted or self.trials_left() == 0:
            return True
        return confirm and self._spent(self._reserve_runs() / slots)

    def _spent(self, runs_at_once: float) -> bool:
        """Whether the budget has no room beyond so many more runs, one after the other on every slot."""
        run_s = self.seconds_per_run()
        wall, gpu = self.problem.budget.wall_s, self.problem.budget.gpu_s
        wall_left, gpu_left = self.wall_s_left(), self.gpu_s_left()
        if wall is not None and wall_left is not None:
            kept = min(CONFIRMATION_SHARE * wall, runs_at_once * run_s if run_s is not None else 0.0)
            if wall_left <= kept:
                return True
        if gpu is not None and gpu_left is not None:
            busy_s = sum(live.task.config.gpus * (self.clock() - live.since) for live in self.live.values())
            kept = min(CONFIRMATION_SHARE * gpu, runs_at_once * self.devices * run_s if run_s is not None else 0.0)
            return gpu_left - busy_s <= kept
        return False

    def _reserve_runs(self) -> int:
        cv = cv_of(self.records, self.problem.objectives[0].metric)
        return CONTENDERS * SCREEN_RUNS + (1 + FINALISTS) * repeats_for(cv)

    def seconds_per_run(self) -> float | None:
        """From one start to the next, the median of the valid runs; None before the first."""
        took = [r.ended_at - r.started_at for r in self.records if isinstance(r.verdict, Measured)]
        return statistics.median(took) + TURNAROUND_S if took else None

    def confirmation_runs(self, *, slots: int, since: int) -> int:
        """How many runs the confirmation may still take; `since`: the last candidate's number, after which its own
        runs began."""
        run_s = self.seconds_per_run()
        if run_s is None or self.over():
            return 0
        own = [r for r in self.records if r.trial > since and r.role in ("screen", "confirm")]
        budget, most = self.problem.budget, 10_000.0
        wall_left, gpu_left = self.wall_s_left(), self.gpu_s_left()
        if budget.wall_s is not None and wall_left is not None:
            room = CONFIRMATION_SHARE * budget.wall_s - len(own) * run_s / slots
            most = min(most, slots * min(room, wall_left) / run_s)
        if budget.gpu_s is not None and gpu_left is not None:
            room = CONFIRMATION_SHARE * budget.gpu_s - sum(r.gpu_s for r in own)
            most = min(most, slots * min(room, gpu_left) / (run_s * self.devices))
        return max(0, int(most))

    # ------------------------------------------------------------ what is known

    def measured(self) -> list[tuple[int, Measurement]]:
        return [(r.trial, r.verdict.measurement) for r in self.records if isinstance(r.verdict, Measured)]

    def actors_in_use(self) -> set[str]:
        """Ray actors of live trials, as far as they have reported."""
        return {live.actor for live in self.live.values() if live.actor is not None}

    def losses(self, measurement: Measurement) -> tuple[float, ...] | None:
        values = [objective.loss(measurement) for objective in self.problem.objectives]
        return None if any(v is None for v in values) else tuple(v for v in values if v is not None)

    def front(self) -> tuple[int, ...]:
        """The trials that no other dominates, by their measured values; found anew only when a trial has ended."""
        if self._front[0] == len(self.records):
            return self._front[1]
        known = [(number, losses) for number, m in self.measured() if (losses := self.losses(m)) is not None]
        best = set(front([losses for _, losses in known]))
        self._front = len(self.records), tuple(sorted(n for index, (n, _) in enumerate(known) if index in best))
        return self._front[1]

    def between_run_cv(self, metric: str) -> float:
        """As `cv_of` has it; found anew only when a trial has ended, as every snapshot of every trial asks for it."""
        if self._cvs[0] != len(self.records):
            self._cvs = len(self.records), {}
        known = self._cvs[1]
        if metric not in known:
            known[metric] = cv_of(self.records, metric)
        return known[metric]

    def same_failure_in_a_row(self) -> tuple[str, int]:
        """The cause that the newest records share, and how many of them do."""
        count, cause = 0, ""
        for record in reversed(self.records):
            mine = getattr(record.verdict, "cause", None) or getattr(record.verdict, "reasons", ("",))[0]
            if verdict_name(record.verdict) in ("measured", "dominated") or (cause and mine != cause):
                break
            cause, count = mine, count + 1
        return cause, count

    def stuck(self) -> str:
        """Why the search should give up: attempt after attempt ends the same way, and someone should look. Empty where
        it may go on: a lack of memory teaches something each time, and after an engine that ran it is only the edge."""
        cause, count = self.same_failure_in_a_row()
        shortage = cause.startswith(("capacity.", "oom."))
        if count < (SAME_SHORTAGE_LIMIT if shortage else SAME_FAILURE_LIMIT):
            return ""
        if shortage and any(isinstance(record.verdict, Measured | Dominated) for record in self.records):
            return ""
        advice = f" ({REMEDIES[cause]})" if cause in REMEDIES else ""
        return f"{count} attempts in a row ended with the same failure: {cause}{advice}"

    def progress(self, event: str = "", finished: TrialRecord | None = None) -> Progress:
        now = self.clock()
        return Progress(
            elapsed_s=self.elapsed_s,
            verdicts=dict(Counter(verdict_name(record.verdict) for record in self.records)),
            running=tuple(
                RunningTrial(
                    trial=live.task.trial,
                    attempt=live.task.attempt,
                    role=live.suggestion.role,
                    gpus=live.task.config.gpus,
                    stage=live.snapshot.stage,
                    detail=live.snapshot.detail,
                    elapsed_s=now - live.since,
                )
                for live in self.live.values()
            ),
            front=self.front(),
            gpus_total=self.devices,
            gpus_busy=sum(live.task.config.gpus for live in self.live.values()),
            gpu_s=self.gpu_s,
            gpu_s_left=self.gpu_s_left(),
            wall_s_left=self.wall_s_left(),
            trials_left=self.trials_left(),
            actors_started=len(self.actors),
            event=event,
            finished=finished,
            records=tuple(self.records),
        )
