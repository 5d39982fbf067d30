"""vtune itself on a problem: its own searcher, ledger, packing, study and scheduler, in virtual time.

Only Ray Tune and the engines are left out: this loop stands where Ray's controller does. It asks the searcher for tasks
until there is nothing to start, goes on to the next thing that happens, shows the scheduler each snapshot, and ends a
trial as the trial's own process would.
"""

from __future__ import annotations

import heapq
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

from autotune.history.record import TrialRecord
from autotune.history.rundir import RunDir, RunHeader
from autotune.run.ledger import Ledger
from autotune.run.packing import Packing
from autotune.run.recorder import Delivered
from autotune.run.scheduler import DominanceScheduler
from autotune.run.searcher import VtuneSearcher
from autotune.run.task import TrialTask
from autotune.search.candidates import SamplerName
from autotune.search.conclusion import conclude
from autotune.search.confirmation import baseline_of
from autotune.search.study import Study
from autotune.spec.capacity_learned import Memory
from autotune.spec.measurement import StartFacts
from autotune.spec.objective import Budget
from autotune.spec.verdict import Books, Dominated, Infeasible, Measured, Verdict
from autotune.trial.climb import Outcome, Snapshot
from benchmarks.search.machines import DEFAULTS, shape_of
from benchmarks.search.problems import STOP_S, WARM_UP_S, Case
from benchmarks.search.replay import Look, looks
from benchmarks.search.runs import Event, Run
from benchmarks.search.table import Row, key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What of vtune is on. All of it is what `vtune search` does on GPUs."""

    sampler: SamplerName = "gp"
    pruning: bool = True
    memory: bool = True
    feasibility: bool = True


@dataclass(slots=True, kw_only=True)
class _Live:
    task: TrialTask
    row: Row
    began_s: float
    looks: Iterator[Look]
    last: Look = field(default_factory=lambda: Look(at_s=0.0, measurement=None))


class _Searcher(VtuneSearcher):
    def _keep(self, record: TrialRecord) -> None:
        """Parquet takes longer than all else here."""


class _Tune:
    def __init__(self, case: Case, rows: dict[str, Row], *, seed: int, budget_gpu_s: float, parts: Parts) -> None:
        self.case, self.rows, self.seed, self.parts = case, rows, seed, parts
        self.now_s = 0.0
        self.outcomes: dict[tuple[int, int], Delivered] = {}
        self.events: list[Event] = []
        self.problem = replace(case.problem, seed=seed, budget=Budget(wall_s=budget_gpu_s / case.devices))
        self.folder = Path(tempfile.mkdtemp(prefix="vtune-search-"))
        header = RunHeader(
            name="run",
            seed=seed,
            command=(),
            space_text="",
            workload_text="",
            objectives=self.problem.objectives,
            slos=self.problem.slos,
            budget=self.problem.budget,
            started_at=0.0,
        )
        run = RunDir.create(self.folder / "run", header)
        self.ledger = Ledger(problem=self.problem, devices=case.devices, clock=lambda: self.now_s, began=0.0)
        study = Study.open(
            run.journal, self.problem, sampler=parts.sampler, defaults=DEFAULTS, study_name=f"{case.name}-{seed}"
        )
        if not parts.feasibility:
            study._candidates._feasibility = lambda _: None  # type: ignore[assignment, method-assign]
        memory = Memory(shape=shape_of(case.model), gpu_gib=case.gpu_gib, defaults=DEFAULTS) if parts.memory else None
        self.searcher = _Searcher(
            study=study,
            run=run,
            ledger=self.ledger,
            packing=Packing(nodes={"node": case.devices}),
            take=lambda trial, attempt: self.outcomes.pop((trial, attempt), None),
            watch=lambda _: None,
            max_attempts=1,
            retries=[],
            memory=memory,
        )
        self.scheduler = DominanceScheduler(self.ledger)
        self.live: dict[str, _Live] = {}
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()

    def run(self) -> Run:
        try:
            finished = False
            while True:
                while not finished:
                    identity = f"t{next(self.order)}"
                    asked = self.searcher.suggest(identity)
                    if asked is None:
                        break
                    if not isinstance(asked, dict):
                        finished = True
                        break
                    self._start(identity, asked["task"])
                if not self.queue:
                    break
                self.now_s, _, happens = heapq.heappop(self.queue)
                happens()
            conclusion = conclude(self.ledger.records, self.problem.objectives, self.problem.slos)
            winner = conclusion.winner if conclusion else None
            kept = baseline_of(self.ledger.records) or self.problem.space.default()
            return Run(
                events=tuple(self.events),
                took_s=self.now_s,
                said=key_of(winner.config if winner else kept),
            )
        finally:
            shutil.rmtree(self.folder)

    def _at(self, at_s: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (at_s, next(self.order), happens))

    def _start(self, identity: str, task: TrialTask) -> None:
        row = self.rows[key_of(task.config)]
        self.live[identity] = _Live(
            task=task,
            row=row,
            began_s=self.now_s,
            looks=looks(self.case, row, seed=task.seed),
        )
        self._look(identity)

    def _look(self, identity: str) -> None:
        live = self.live[identity]
        live.last = next(live.looks)
        self._at(live.began_s + live.last.at_s, lambda: self._show(identity))

    def _show(self, identity: str) -> None:
        live = self.live[identity]
        seen = live.last.measurement
        if seen is None or seen.complete:
            self._end(identity, stopped=False)
            return
        result = {"done": False, "snapshot": Snapshot(stage="load", measurement=seen), "node": "node", "actor": "a"}
        decision = self.scheduler.on_trial_result(None, SimpleNamespace(trial_id=identity), result)
        if self.parts.pruning and decision == "STOP":
            self._end(identity, stopped=True)
        else:
            self._look(identity)

    def _end(self, identity: str, *, stopped: bool) -> None:
        """The GPUs are free, and the searcher hears of it, once the engine has gone."""
        live = self.live.pop(identity)
        took_s, seen, row = live.last.at_s, live.last.measurement, live.row
        start_s = min(row.start_s, took_s)
        if row.cause is not None:
            verdict: Verdict | None = Infeasible(
                cause=row.cause, evidence="", shortfall=row.shortfall, bounds=row.bounds
            )
            books = Books(dead_s=took_s, stop_s=STOP_S)
        else:
            verdict = None if stopped or seen is None else Measured(measurement=seen)
            books = Books(
                start_s=start_s, warm_up_s=WARM_UP_S, load_s=max(0.0, took_s - start_s - WARM_UP_S), stop_s=STOP_S
            )
        known = row.facts if row.facts.kv_cache_gib is not None else StartFacts()
        outcome = Outcome(
            verdict=verdict,
            books=books,
            measurements=(seen,) if seen is not None else (),
            facts=known,
            devices=tuple(map(str, range(row.gpus))),
        )

        def tell() -> None:
            self.outcomes[live.task.trial, live.task.attempt] = Delivered(
                outcome, node="node", started_at=live.began_s, ended_at=self.now_s, versions={}
            )
            self.searcher.on_trial_complete(identity)
            record = self.ledger.records[-1]
            self.events.append(
                Event(
                    key=row.key,
                    began_s=live.began_s,
                    ended_s=self.now_s,
                    gpus=row.gpus,
                    kind="dead"
                    if row.cause is not None
                    else "pruned"
                    if isinstance(record.verdict, Dominated)
                    else "measured",
                    role=record.role,
                )
            )

        self._at(self.now_s + STOP_S, tell)


def vtune(case: Case, rows: dict[str, Row], *, seed: int, budget_gpu_s: float, parts: Parts) -> Run:
    return _Tune(case, rows, seed=seed, budget_gpu_s=budget_gpu_s, parts=parts).run()
