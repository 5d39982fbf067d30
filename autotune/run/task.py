"""What one trial is to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.spec.config import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTask:
    """What one trial is to do; it travels as `{"task": ...}`, Ray Tune's config of the trial.

    `stress`: its engine is to show at the end that it survives peak load. `engine`: `shared` may be the engine of the
    trial before, or one that later trials can use; `own` is started with exactly its flags; `plain` besides has no
    plugin of ours, as `vllm serve` would have it.
    """

    trial: int
    attempt: int
    config: EngineConfig
    seed: int
    stress: bool = False
    engine: Literal["shared", "own", "plain"] = "own"

    @property
    def name(self) -> str:
        return f"{self.trial:04d}-{self.attempt}"
