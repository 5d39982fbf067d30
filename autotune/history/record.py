"""One trial as the history keeps it: everything that a report, a comparison or a later study may ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.measurement import Measurement, StartFacts
from autotune.spec.verdict import Books, Verdict

Role = Literal["default", "incumbent", "search", "baseline", "screen", "confirm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """Rows are keyed by (trial, attempt): a retried trial keeps its number and counts its attempts from 1.

    `measurements` holds one per rung that was run, reference rungs included. `started_at` and `ended_at` are Unix
    seconds. `point` is what the study suggested (empty for the default and an incumbent outside the space).
    """

    trial: int
    attempt: int
    role: Role
    verdict: Verdict
    config: EngineConfig
    point: Mapping[str, FlagValue]
    seed: int
    workload: str
    measurements: tuple[Measurement, ...]
    facts: StartFacts
    books: Books
    gpus: int
    devices: tuple[str, ...]
    node: str
    argv: tuple[str, ...]
    engine_reused: bool
    started_at: float
    ended_at: float
    versions: Mapping[str, str] = field(default_factory=dict)
    launched: EngineConfig | None = None
    """What the engine's process was started with, where that isn't `config`: `facts` and `argv` are that engine's."""

    @property
    def gpu_s(self) -> float:
        return self.gpus * self.books.total_s

    @property
    def measurement(self) -> Measurement | None:
        """That of the last reference rung, as far as it got."""
        return getattr(self.verdict, "measurement", None)
