"""Stops trials that can't win, and all of them when the user asks to stop."""

from __future__ import annotations

import logging
from typing import Any

from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from autotune.run.ledger import Ledger, LiveTrial
from autotune.search.prune import decide
from autotune.spec.verdict import Dominated
from autotune.spec.workload import Rung
from autotune.trial.climb import Snapshot

log = logging.getLogger(__name__)

MIN_REQUESTS, MIN_S = 100, 3.0


def earliest_stop(rung: Rung) -> tuple[int, float]:
    """Finished requests and seconds before which nobody is stopped: ramp-up makes every engine look slow at first."""
    return min(rung.requests, MIN_REQUESTS), max(MIN_S, rung.duration_s / 4)


class DominanceScheduler(FIFOScheduler):  # type: ignore[misc]  # ray has no types
    """Optuna can't prune with several objectives (its `should_prune` raises), so this does (docs/design.md, 3)."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def __reduce__(self) -> tuple[Any, ...]:
        """Ray Tune pickles its state for a restore that vtune doesn't use (the history is the record)."""
        return (FIFOScheduler, ())

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        live = self._ledger.live.get(trial.trial_id)
        self._ledger.actors.add(str(result.get("actor")))
        if live is None or result.get("done"):
            return str(TrialScheduler.CONTINUE)
        live.node, live.actor = result.get("node"), result.get("actor")
        snapshot = result.get("snapshot")
        if isinstance(snapshot, Snapshot):
            fresh = snapshot is not live.snapshot
            live.snapshot = snapshot
            if fresh and self._dominated(live, snapshot):
                return str(TrialScheduler.STOP)
        return str(TrialScheduler.STOP if self._ledger.interrupted else TrialScheduler.CONTINUE)

    def _dominated(self, live: LiveTrial, snapshot: Snapshot) -> bool:
        """The baselines are what everything is compared with: they always run to the end."""
        workload, seen = self._ledger.problem.workload, snapshot.measurement
        reference: Rung = workload.reference
        if live.suggestion.role != "search" or seen is None or seen.rung != reference.name:
            return False
        front = set(self._ledger.front())
        live.looks += 1
        live.dominated = decide(
            seen,
            [(number, measurement) for number, measurement in self._ledger.measured() if number in front],
            self._ledger.problem.objectives,
            self._ledger.problem.slos,
            looks=live.looks,
            between_run_cv=self._ledger.between_run_cv,
            minimum=earliest_stop(reference),
        )
        return isinstance(live.dominated, Dominated)
