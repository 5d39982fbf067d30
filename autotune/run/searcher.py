"""Between Ray Tune, which runs trials, and the study, which suggests them.

Ray's own OptunaSearch isn't used: with several objectives it drops intermediate results, tells an out-of-memory as FAIL
(which TPE never reads) and leaves a trial without metrics RUNNING for ever (docs/design.md, 1).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from typing import Any, Literal

from ray.tune.search import Searcher

from autotune.history.record import TrialRecord
from autotune.history.rundir import RunDir
from autotune.history.tables import append_rungs, append_trial, trial_row
from autotune.run.idle_engines import IdleEngines
from autotune.run.ledger import Ledger, LiveTrial
from autotune.run.packing import Packing
from autotune.run.progress import Progress
from autotune.run.recorder import Delivered
from autotune.run.task import TrialTask
from autotune.run.vetting import Vetting
from autotune.search.confirmation import (
    CANDIDATE_ROLES,
    baseline_of,
    baseline_repeats,
    next_step,
)
from autotune.search.dead import Dead
from autotune.search.study import SpaceExhausted, Study, Suggestion
from autotune.spec.capacity_learned import Memory, SeenStart
from autotune.spec.config import EngineConfig
from autotune.spec.live import LiveSplit
from autotune.spec.measurement import Measurement
from autotune.spec.verdict import Books, Broken, Dominated, Infeasible, Invalid, Measured, Verdict, verdict_name
from autotune.trial.climb import Outcome

log = logging.getLogger(__name__)


class VtuneSearcher(Searcher):  # type: ignore[misc]  # ray has no types
    """`take(trial, attempt)` fetches a finished trial's outcome from the recorder."""

    def __init__(
        self,
        *,
        study: Study,
        run: RunDir,
        ledger: Ledger,
        packing: Packing,
        take: Callable[[int, int], Delivered | None],
        watch: Callable[[Progress], None],
        max_attempts: int,
        retries: list[Suggestion],
        confirm: bool = True,
        memory: Memory | None = None,
        vetting: Vetting | None = None,
        split: LiveSplit | None = None,
    ) -> None:
        super().__init__(metric=None, mode=None)
        self._study, self._run, self._ledger, self._packing = study, run, ledger, packing
        self._take, self._watch, self._max_attempts, self._confirm = take, watch, max_attempts, confirm
        self._memory, self._vetting = memory, vetting
        self._idle = IdleEngines(split=split)
        self._dead = Dead(ledger.problem.defaults)
        for record in ledger.records:
            self._learn(record)
        self._waiting = retries
        """Suggestions asked for but not started: retries, and one that waits for devices."""
        self._drains_for: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Ray Tune pickles its state for a restore that vtune doesn't use (the history is the record)."""
        return (Searcher, ())

    # ------------------------------------------------------------ Ray asks

    def suggest(self, trial_id: str) -> Any:
        """A task to start now; None while nothing can start; FINISHED when the budget is used up."""
        ledger, packing = self._ledger, self._packing
        for actor in ledger.actors_in_use():
            self._idle.taken(actor)
        for key, live in ledger.live.items():
            if live.node is not None:
                packing.place(key, live.node)
        if ledger.over():
            return None if ledger.live else Searcher.FINISHED
        if not packing.fits(1):
            return None
        if not self._waiting:
            self._waiting += self._next()
        if not self._waiting:
            return None if ledger.live else Searcher.FINISHED
        first = self._waiting[0]
        if not packing.fits(first.config.gpus):
            if first.number != self._drains_for:  # nothing smaller slips in
                self._drains_for = first.number
                self._watch(ledger.progress(f"trial {first.number} waits for {first.config.gpus} free devices"))
            return None
        return self._start(trial_id, self._waiting.pop(0))

    def _next(self) -> list[Suggestion]:
        """What comes next: the baseline again when it is due, a candidate, or (once the last candidate has its verdict)
        the confirmation. Empty: nothing, or nothing before a running trial ends."""
        ledger, packing, study = self._ledger, self._packing, self._study
        if not ledger.search_over(slots=self._slots(), confirm=self._confirm):
            due = baseline_repeats(study.candidates, ledger.problem.budget.trials)
            overdue = due - list(study.roles.values()).count("baseline")
            baseline = baseline_of(ledger.records)
            # When engines of its size run anyway and the free one can run as it, unless that never comes: else it costs
            # a start, a change of size a drain and actors besides.
            if baseline is not None and (
                overdue > 1
                or (overdue == 1 and packing.size == baseline.gpus and self._idle.reach(baseline) is not False)
            ):
                return [study.repeat("baseline", baseline)]
            asked = study.ask(gpus=packing.wanted(), accept=self._accept, seconds=self._idle.seconds(ledger.records))
            if not isinstance(asked, SpaceExhausted):
                return [asked]
            ledger.exhausted = True
        return [] if ledger.live or not self._confirm else self._confirmation()

    def _accept(self, config: EngineConfig) -> bool:
        """Whether an engine like this may start: a node is large enough, no failure rules it out, memory isn't known to
        be too little, and vLLM itself has nothing against it. What is known grows with every trial, and after a resume
        it is the same again."""
        if config.gpus > self._packing.largest() or self._dead.why(config) is not None:
            return False
        if self._memory is not None and self._memory.doomed(config) is not None:
            return False
        return self._vetting is None or not self._vetting.refuses(config)

    def _learn(self, record: TrialRecord) -> None:
        """From an engine that started, or couldn't; a harness or machine that failed teaches nothing."""
        match record.verdict:
            case Infeasible() as verdict:
                self._dead.failed(record.config, verdict)
            case Measured() | Dominated():
                self._dead.ran(record.config)
            case _:
                return
        if self._memory is not None and not record.engine_reused:
            started = record.launched or record.config
            self._memory = self._memory.after(SeenStart(config=started, facts=record.facts))

    def _confirmation(self) -> list[Suggestion]:
        """All runs of its next step (screening, then finalists against the baseline), in order; they are in the journal
        before the first of them starts, so a killed search goes on with them."""
        ledger, study = self._ledger, self._study
        problem = ledger.problem
        newest = max((n for n, role in study.roles.items() if role in CANDIDATE_ROLES), default=-1)
        begun = {role for n, role in study.roles.items() if n > newest}
        if "confirm" in begun:
            return []
        step = next_step(
            ledger.records,
            problem.objectives[0],
            problem.slos,
            screened="screen" in begun,
            room=ledger.confirmation_runs(slots=self._slots(), since=newest),
            seed=problem.seed,
        )
        self._watch(ledger.progress(step.says))
        first: dict[int, int] = {}
        return [
            study.repeat(repeat.role, repeat.config, group=first.setdefault(repeat.block, study.next_number))
            for repeat in step.repeats
        ]

    def _slots(self) -> int:
        """Engines of the baseline's size that run at once."""
        baseline = baseline_of(self._ledger.records)
        at_once = self._packing.total // (baseline.gpus if baseline else 1)
        return max(1, at_once if self._packing.concurrency is None else min(at_once, self._packing.concurrency))

    def _start(self, trial_id: str, suggestion: Suggestion) -> dict[str, Any]:
        attempt = suggestion.attempt
        traffic = suggestion.number if suggestion.group is None else suggestion.group
        task = TrialTask(
            trial=suggestion.number,
            attempt=attempt,
            config=suggestion.config,
            seed=self._ledger.problem.seed * 1_000_003 + traffic * 101 + attempt,
            stress=self._is_last_confirmation(suggestion),
            engine=self._engine_for(suggestion),
        )
        self._packing.start(trial_id, task.config.gpus)
        self._ledger.live[trial_id] = LiveTrial(task=task, suggestion=suggestion, since=self._ledger.clock())
        what = "" if suggestion.role in CANDIDATE_ROLES else f" ({suggestion.role})"
        what += f" (attempt {attempt})" * (attempt > 1)
        self._watch(self._ledger.progress(f"trial {task.trial} starts{what}"))
        return {"task": task}

    def _engine_for(self, suggestion: Suggestion) -> Literal["shared", "own", "plain"]:
        """What is decided by is measured as it will be in use; a second attempt, and the default that everything is
        compared with, in an engine that nothing else was asked of."""
        if suggestion.role in ("screen", "confirm"):
            return "plain"
        return "own" if suggestion.attempt > 1 or suggestion.role in ("default", "incumbent") else "shared"

    def _is_last_confirmation(self, suggestion: Suggestion) -> bool:
        """Whether no further run of this configuration's confirmation waits to be started: then this one ends with the
        stress, which may kill its engine."""
        waiting = {other.config.key for other in self._waiting if other.role == "confirm"}
        return suggestion.role == "confirm" and suggestion.config.key not in waiting

    # ------------------------------------------------------------ Ray tells

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """The scheduler reads results; nothing reaches the study but verdicts."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        live = self._ledger.live.pop(trial_id, None)
        self._packing.end(trial_id)
        if live is None:
            return
        delivered = self._take(live.task.trial, live.task.attempt)
        if delivered is not None:
            self._idle.ended(delivered.actor, gpus=live.task.config.gpus, holds=delivered.holds)
        record = self._record(live, delivered)
        self._keep(record)
        self._ledger.records.append(record)
        self._learn(record)
        self._settle(live, record)

    def _keep(self, record: TrialRecord) -> None:
        """On disk before the study hears of it."""
        if not isinstance(record.verdict, Measured | Dominated):
            keep_failure(self._run, record)
        append_rungs(self._run, record)
        append_trial(self._run, record)

    def _record(self, live: LiveTrial, delivered: Delivered | None) -> TrialRecord:
        now = time.time()
        took_s = self._ledger.clock() - live.since
        if delivered is None:
            delivered = Delivered(
                Outcome(
                    verdict=Broken(error="the trial's process died without a word", cause="infra.node_lost"),
                    books=Books(dead_s=took_s),
                ),
                node=live.node or "",
                started_at=now - took_s,
                ended_at=now,
                versions={},
            )
        outcome = delivered.outcome
        return TrialRecord(
            trial=live.task.trial,
            attempt=live.task.attempt,
            role=live.suggestion.role,
            verdict=outcome.verdict or self._cut_short(live, outcome),
            config=live.task.config,
            point=live.suggestion.point,
            seed=live.task.seed,
            workload=self._ledger.problem.workload.name,
            measurements=outcome.measurements,
            facts=outcome.facts,
            books=outcome.books,
            gpus=live.task.config.gpus,
            devices=outcome.devices,
            node=delivered.node,
            argv=outcome.argv,
            engine_reused=outcome.reused,
            launched=outcome.launched if outcome.launched and outcome.launched.key != live.task.config.key else None,
            started_at=delivered.started_at,
            ended_at=delivered.ended_at,
            versions=delivered.versions,
        )

    def _cut_short(self, live: LiveTrial, outcome: Outcome) -> Verdict:
        """Why a trial ended without a verdict of its own: it was stopped, by the scheduler or by the user."""
        reference = self._ledger.problem.workload.reference_rungs[-1]
        seen: Measurement | None = next((m for m in outcome.measurements if m.rung == reference), None)
        if live.dominated is not None and seen is not None:
            return Dominated(by=live.dominated.by, measurement=replace(seen, complete=False))
        if self._ledger.interrupted:
            return Broken(error="interrupted by the user", cause="infra.interrupted")
        return Broken(error="stopped: its driver was silent", cause="infra.driver_silent")

    def _settle(self, live: LiveTrial, record: TrialRecord) -> None:
        """Tells the study, or puts the trial up for another attempt: only a verdict on the configuration is told."""
        verdict, ledger = record.verdict, self._ledger
        again = isinstance(verdict, Broken | Invalid) and record.attempt < self._max_attempts
        event = f"trial {record.trial} {verdict_name(verdict)}"
        if isinstance(verdict, Infeasible | Broken) and verdict.cause == "unknown":
            event += f" (of an unknown cause: {self._run.failures(record.trial, record.attempt)} has the whole log)"
        if again and not ledger.interrupted:
            self._waiting.insert(0, replace(live.suggestion, attempt=record.attempt + 1))
            event += ": will be tried again"
        elif not ledger.interrupted or not isinstance(verdict, Broken):
            self._study.tell(record.trial, verdict)
        ledger.halted = ledger.halted or ledger.stuck()
        self._watch(ledger.progress(event, record))

    # ------------------------------------------------------------ what Ray's interface wants

    def save(self, checkpoint_path: str) -> None:
        """The journal and the history are the record."""

    def restore(self, checkpoint_path: str) -> None:
        """Resuming starts a fresh Ray Tune run (docs/design.md)."""


def keep_failure(run: RunDir, record: TrialRecord) -> None:
    """failures/<trial>/: what happened, with which words, and where the engine's whole log is.

    Beside it, where the cause isn't known: the folder is then all that a report needs."""
    row = {key: value for key, value in trial_row(record).items() if value is not None}
    folder = run.failures(record.trial, record.attempt)
    engine_log = run.logs(record.trial, record.attempt) / "engine.log"
    if engine_log.exists():
        if row.get("cause") == "unknown":
            engine_log = Path(copyfile(engine_log, folder / engine_log.name))
        row["engine_log"] = str(engine_log.relative_to(run.path))
    file = folder / "failure.json"
    file.write_text(json.dumps(row, indent=1, default=str) + "\n")
