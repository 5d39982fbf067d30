"""What the driver knows while a search runs: finished and live trials, and what is left of the budget. No Ray here."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.history.record import TrialRecord
from autotune.run.progress import Progress, RunningTrial
from autotune.run.task import TrialTask
from autotune.search.dominance import front
from autotune.search.study import Suggestion
from autotune.spec.measurement import Measurement
from autotune.spec.problem import Problem
from autotune.spec.verdict import Dominated, Measured, verdict_name
from autotune.trial.climb import Snapshot


@dataclass(slots=True, kw_only=True)
class LiveTrial:
    task: TrialTask
    suggestion: Suggestion
    since: float
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(stage="starting"))
    node: str | None = None
    looks: int = 0
    dominated: Dominated | None = None


@dataclass(slots=True, kw_only=True)
class Ledger:
    """`spent_before_s` and earlier `records` come from the sessions that a resumed run had."""

    problem: Problem
    devices: int
    spent_before_s: float = 0.0
    records: list[TrialRecord] = field(default_factory=list)
    live: dict[str, LiveTrial] = field(default_factory=dict)
    actors: set[str] = field(default_factory=set)
    interrupted: bool = False
    exhausted: bool = False
    halted: str = ""
    """Why the search gave up by itself (the same failure again and again)."""
    clock: Callable[[], float] = time.monotonic
    began: float = field(default_factory=time.monotonic)

    # ------------------------------------------------------------ the budget

    @property
    def elapsed_s(self) -> float:
        return self.spent_before_s + self.clock() - self.began

    @property
    def gpu_s(self) -> float:
        return sum(record.gpu_s for record in self.records)

    def settled(self) -> int:
        """Trials that count against the budget: those with an answer, infeasible ones included."""
        return len(
            {r.trial for r in self.records if verdict_name(r.verdict) in ("measured", "infeasible", "dominated")}
        )

    def gpu_s_left(self) -> float | None:
        limit = self.problem.budget.gpu_s
        return None if limit is None else max(0.0, limit - self.gpu_s)

    def wall_s_left(self) -> float | None:
        limit = self.problem.budget.wall_s
        return None if limit is None else max(0.0, limit - self.elapsed_s)

    def trials_left(self) -> int | None:
        """How many more new trials may be started."""
        limit = self.problem.budget.trials
        if limit is None:
            return None
        given_up = {r.trial for r in self.records}
        return max(0, limit - len(given_up | {live.task.trial for live in self.live.values()}))

    def over(self) -> bool:
        """Whether no new trial may be started."""
        if self.interrupted or self.exhausted or self.halted:
            return True
        busy_s = sum(live.task.config.gpus * (self.clock() - live.since) for live in self.live.values())
        gpu_left, wall_left = self.gpu_s_left(), self.wall_s_left()
        return (gpu_left is not None and gpu_left <= busy_s) or (wall_left is not None and wall_left <= 0)

    # ------------------------------------------------------------ what is known

    def measured(self) -> list[tuple[int, Measurement]]:
        return [(r.trial, r.verdict.measurement) for r in self.records if isinstance(r.verdict, Measured)]

    def losses(self, measurement: Measurement) -> tuple[float, ...] | None:
        values = [objective.loss(measurement) for objective in self.problem.objectives]
        return None if any(v is None for v in values) else tuple(v for v in values if v is not None)

    def front(self) -> tuple[int, ...]:
        """The trials that no other dominates, by their measured values."""
        known = [(number, losses) for number, m in self.measured() if (losses := self.losses(m)) is not None]
        best = set(front([losses for _, losses in known]))
        return tuple(sorted(number for index, (number, _) in enumerate(known) if index in best))

    def same_failure_in_a_row(self) -> tuple[str, int]:
        """The cause that the newest records share, and how many of them do."""
        count, cause = 0, ""
        for record in reversed(self.records):
            mine = getattr(record.verdict, "cause", None) or getattr(record.verdict, "reasons", ("",))[0]
            if verdict_name(record.verdict) in ("measured", "dominated") or (cause and mine != cause):
                break
            cause, count = mine, count + 1
        return cause, count

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
