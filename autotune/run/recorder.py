"""The one writer of a run's bulk data: a Ray actor on the driver's node, so that trials on any node can hand over.

Trials hand over their engine's log, their request rows and their outcome before Ray hears that they ended; the driver
takes the outcome from here. So nothing large travels through Ray Tune's own results, which it keeps for ever.
"""

from __future__ import annotations

from pathlib import Path

from autotune.history.rundir import RunDir
from autotune.history.tables import append_requests
from autotune.spec.config import EngineConfig
from autotune.trial.climb import Outcome

MAX_LOG_BYTES = 8 * 2**20


class Recorder:
    """Runs inside a Ray actor (`ray.remote(Recorder)`); plain otherwise."""

    def __init__(self, run: Path) -> None:
        self.run = RunDir(run)
        self.outcomes: dict[tuple[int, int], Delivered] = {}

    def deliver(self, trial: int, attempt: int, delivered: Delivered) -> None:
        """Files first, then the rows, then the outcome: what the driver takes is on disk already."""
        folder = self.run.logs(trial, attempt)
        for name, content in delivered.files.items():
            (folder / Path(name).name).write_bytes(content)
        for table in delivered.requests:
            append_requests(self.run, table)
        self.outcomes[trial, attempt] = delivered.without_bulk()

    def take(self, trial: int, attempt: int) -> Delivered | None:
        """The outcome of an attempt, once; None when its actor died before it could hand over."""
        return self.outcomes.pop((trial, attempt), None)


class Delivered:
    """An outcome with what belongs on disk beside it. `files`: name -> content, cut to `MAX_LOG_BYTES`. `actor`: the
    Ray actor that ran the trial; `holds`: what the engine that it keeps was started with."""

    __slots__ = ("actor", "ended_at", "files", "holds", "node", "outcome", "requests", "started_at", "versions")

    def __init__(
        self,
        outcome: Outcome,
        *,
        node: str,
        started_at: float,
        ended_at: float,
        versions: dict[str, str],
        actor: str = "",
        holds: EngineConfig | None = None,
        files: dict[str, bytes] | None = None,
        requests: list[bytes] | None = None,
    ) -> None:
        self.outcome, self.node, self.versions = outcome, node, versions
        self.started_at, self.ended_at = started_at, ended_at
        self.actor, self.holds = actor, holds
        self.files, self.requests = files or {}, requests or []

    def without_bulk(self) -> Delivered:
        return Delivered(
            self.outcome,
            node=self.node,
            started_at=self.started_at,
            ended_at=self.ended_at,
            versions=self.versions,
            actor=self.actor,
            holds=self.holds,
        )
