"""What a search looks like from outside while it runs: the driver makes one of these whenever something happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autotune.history.record import TrialRecord

RunState = Literal["running", "interrupted", "done", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTrial:
    """`stage`: starting, warm-up, load, stopping; `detail` says more (the start log's stage, the rung's name)."""

    trial: int
    attempt: int
    role: str
    gpus: int
    stage: str
    detail: str
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`verdicts` counts finished trials by verdict name. `event` is one line about what just happened, or empty
    for a mere tick. `finished` is the record that the event is about, if it is about one."""

    elapsed_s: float
    verdicts: Mapping[str, int]
    running: tuple[RunningTrial, ...]
    front: tuple[int, ...]
    gpus_total: int
    gpus_busy: int
    gpu_s: float
    gpu_s_left: float | None
    wall_s_left: float | None
    trials_left: int | None
    actors_started: int = 0
    """Ray actors so far: each costs a second or two, and on a CPU an import of vLLM."""
    event: str = ""
    finished: TrialRecord | None = None
    records: tuple[TrialRecord, ...] = field(default=(), repr=False)
