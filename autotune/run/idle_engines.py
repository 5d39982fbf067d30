"""Which running engines wait for a trial, and what it takes to measure a candidate with them. No Ray here.

Ray gives a new trial the actor of its size that has waited longest (ray/tune/utils/object_cache.py), and that actor's
engine with it. Where it turns out otherwise, a trial costs a start more; nothing else depends on it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autotune.history.record import TrialRecord
from autotune.spec.config import EngineConfig
from autotune.spec.live import LiveSplit
from autotune.spec.verdict import Measured

LIVE_S = 0.1
"""What a live change takes, its check included."""


@dataclass(slots=True, kw_only=True)
class IdleEngines:
    """`split` None: no engine outlives its trial."""

    split: LiveSplit | None
    _waiting: dict[str, tuple[int, EngineConfig]] = field(default_factory=dict)
    """Of each actor that has no trial and keeps an engine: its size, and what the engine was started with."""

    def ended(self, actor: str, *, gpus: int, holds: EngineConfig | None) -> None:
        self._waiting.pop(actor, None)
        if holds is not None:
            self._waiting[actor] = gpus, holds

    def taken(self, actor: str) -> None:
        self._waiting.pop(actor, None)

    def reach(self, config: EngineConfig) -> bool | None:
        """Whether the engine that a trial of `config` gets can run as it; None where nothing is kept anyway."""
        if self.split is None:
            return None
        held = next((started for gpus, started in self._waiting.values() if gpus == config.gpus), None)
        return held is not None and self.split.reaches(held, config)

    def seconds(self, records: Sequence[TrialRecord]) -> Callable[[EngineConfig], float] | None:
        """What measuring a configuration would take, start included, by what earlier trials took. None where that is
        the same for all, or not known yet."""
        starts = [r.books.start_s for r in records if not r.engine_reused and r.books.start_s > 0]
        loads = [r.books.warm_up_s + r.books.load_s for r in records if isinstance(r.verdict, Measured)]
        if self.split is None or not self._waiting or not starts or not loads:
            return None
        start_s, load_s = statistics.median(starts), statistics.median(loads)
        return lambda config: load_s + (LIVE_S if self.reach(config) else start_s)
