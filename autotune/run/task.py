"""What one trial is to do."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.spec.config import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTask:
    """What one trial is to do; it travels as `{"task": ...}`, Ray Tune's config of the trial.

    `stress`: its engine is to show at the end that it survives peak load. `plain`: its engine is to be as it will be in
    use, a `vllm serve` started by itself (on a GPU; see `VllmLauncher.plain`).
    """

    trial: int
    attempt: int
    config: EngineConfig
    seed: int
    stress: bool = False
    plain: bool = False

    @property
    def name(self) -> str:
        return f"{self.trial:04d}-{self.attempt}"
