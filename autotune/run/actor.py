"""One trial inside Ray: a class Trainable whose `step()` collects from the climbing thread (docs/design.md, 4).

Ray Tune decides about a trial only when `step()` returns, so each step returns within about a second, also while an
engine starts. Ray calls `save()` at the end of every trial, stopped or done, before it tells the searcher, and nothing
else when actors are reused: so `save()` is where the trial is wound up and its outcome handed over.
"""

from __future__ import annotations

import logging
import os
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune

from autotune.history.tables import requests_table, to_bytes
from autotune.run.engines import EngineKit
from autotune.run.recorder import MAX_LOG_BYTES, Delivered
from autotune.run.task import TrialTask
from autotune.spec.objective import Slo
from autotune.spec.verdict import Books, Broken
from autotune.spec.workload import Workload
from autotune.trial.climb import Outcome, Snapshot, climb
from autotune.trial.shared_engine import blameless

log = logging.getLogger(__name__)

STEP_S = 1.0
SILENCE_S = 20.0
"""A driver that asks for no step this long is gone or hung: the trial stops its load and engine by itself."""
WIND_UP_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext:
    """What all trials of a search share."""

    workload: Workload
    slos: tuple[Slo, ...]
    kit: EngineKit
    recorder: Any
    driver_pid: int
    driver_node: str


class TrialActor(tune.Trainable):  # type: ignore[misc]  # ray has no types
    def setup(self, config: Mapping[str, Any], context: TrialContext | None = None) -> None:
        assert context is not None
        self._context = context
        self._node = ray.get_runtime_context().get_node_id()
        self._actor = ray.get_runtime_context().get_actor_id()
        self._logs = Path(tempfile.mkdtemp(prefix="vtune-"))
        self._devices = context.kit.devices(ray.get_runtime_context().get_accelerator_ids().get("GPU", []))
        on_drivers_node = self._node == context.driver_node
        self._engines = context.kit.open(self._logs, watched=(context.driver_pid,) if on_drivers_node else ())
        self._begin(config["task"])

    def _begin(self, task: TrialTask) -> None:
        self._task = task
        self._engine_before = self._engines.log_name
        self._snapshots: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()
        self._latest: Snapshot = Snapshot(stage="starting")
        self._outcome: Outcome | None = None
        self._cancelled = threading.Event()
        self._heard = time.monotonic()
        self._started_at = time.time()
        self._delivered = False
        self._thread = threading.Thread(target=self._climb, name=f"climb-{task.name}", daemon=True)
        self._thread.start()

    def reset_config(self, new_config: Mapping[str, Any]) -> bool:
        self._wind_up()
        self._begin(new_config["task"])
        return True

    def step(self) -> dict[str, Any]:
        self._heard = time.monotonic()
        until = self._heard + STEP_S
        # A dead thread has put all it will: drain the queue, then end. A living one gets until the step is over.
        while self._thread.is_alive() or not self._snapshots.empty():
            try:
                self._latest = self._snapshots.get(timeout=max(0.01, min(0.1, until - time.monotonic())))
                break
            except queue.Empty:
                if time.monotonic() >= until:
                    break
        done = not self._thread.is_alive() and self._snapshots.empty()
        self._heard = time.monotonic()
        return {"done": done, "snapshot": self._latest, "node": self._node, "actor": self._actor}

    def save(self, checkpoint_dir: str | None = None) -> Any:
        """Winds the trial up. Nothing is checkpointed: the run's history is the record, and a checkpoint would need
        storage that all nodes share."""
        from ray.train._internal.session import _TrainingResult

        self._wind_up()
        return _TrainingResult(checkpoint=None, metrics={})

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Ray Tune reuses actors only of classes that define it."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Never called: nothing is checkpointed."""

    def cleanup(self) -> None:
        self._wind_up()
        self._engines.close()
        shutil.rmtree(self._logs, ignore_errors=True)

    # ---------------------------------------------------------------- the climbing thread

    def _climb(self) -> None:
        task, context = self._task, self._context
        try:
            story = climb(
                self._engines.resolve(task.config),
                context.workload,
                name=task.name,
                slos=context.slos,
                seed=task.seed,
                devices=self._devices,
                launcher=self._engines.launcher(task.engine),
                loader=self._engines.loader,
                clock=self._engines.clock,
                cancelled=self._given_up,
                stress=task.stress,
            )
            while True:
                self._snapshots.put(next(story))
        except StopIteration as end:
            launched = end.value.launched and self._engines.named(end.value.launched)
            self._outcome = blameless(replace(end.value, launched=launched), task.config)
        except Exception as error:  # the boundary: whatever it is, it is ours, and no evidence about the configuration
            log.exception("trial %s broke", task.name)
            self._outcome = Outcome(
                verdict=Broken(error=f"{type(error).__name__}: {error}"),
                books=Books(dead_s=time.time() - self._started_at),
                devices=tuple(self._devices),
            )

    def _given_up(self) -> bool:
        return self._cancelled.is_set() or time.monotonic() - self._heard > SILENCE_S

    def _wind_up(self) -> None:
        """Stops what still runs and hands the outcome over, once."""
        if self._delivered:
            return
        self._cancelled.set()
        self._thread.join(WIND_UP_S)
        outcome = self._outcome or Outcome(
            verdict=Broken(error=f"the engine did not stop within {WIND_UP_S:.0f} s"),
            books=Books(dead_s=time.time() - self._started_at),
            devices=tuple(self._devices),
        )
        task = self._task
        delivered = Delivered(
            replace(outcome, requests=()),
            node=self._node,
            started_at=self._started_at,
            ended_at=time.time(),
            versions={**self._engines.versions, "host": os.uname().nodename},
            actor=self._actor,
            holds=self._engines.holds,
            files=self._files(task.name, outcome),
            requests=[
                to_bytes(requests_table(task.trial, task.attempt, rung.rung, rung.records)) for rung in outcome.requests
            ],
        )
        ray.get(self._context.recorder.deliver.remote(task.trial, task.attempt, delivered))
        self._delivered = True

    def _files(self, name: str, outcome: Outcome) -> dict[str, bytes]:
        """What the trial's engine has written so far, also where it is an earlier trial's. Folders of engines that have
        ended go."""
        source = self._engine_before if outcome.reused else name
        folder = self._logs / (source or name)
        found = {file.name: _tail(file) for file in folder.glob("*") if file.is_file()} if folder.is_dir() else {}
        for other in self._logs.iterdir():
            if other.is_dir() and other.name != self._engines.log_name:
                shutil.rmtree(other, ignore_errors=True)
        return found


def _tail(file: Path) -> bytes:
    """The whole file, or its two ends when it is too long: an engine's cause of death may be at either."""
    content = file.read_bytes()
    if len(content) <= MAX_LOG_BYTES:
        return content
    half = MAX_LOG_BYTES // 2
    return content[:half] + b"\n[... cut by vtune ...]\n" + content[-half:]
