"""Everything a search needs to know from its user, in one value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.spec.config import EngineConfig
from autotune.spec.objective import Budget, Objective, Slo
from autotune.spec.space import SearchSpace
from autotune.spec.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`pinned` are the gated dimensions that were held at their baseline because no quality gate can run."""

    space: SearchSpace
    workload: Workload
    objectives: tuple[Objective, ...]
    slos: tuple[Slo, ...]
    budget: Budget
    seed: int
    incumbent: EngineConfig | None = None
    pinned: tuple[str, ...] = ()
    space_file: Path | None = None
    workload_file: Path | None = None
