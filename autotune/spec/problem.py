"""Everything a search needs to know from its user, in one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.objective import Budget, Objective, Slo
from autotune.spec.space import SearchSpace
from autotune.spec.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`pinned` are the gated dimensions that were held at their baseline because no quality gate can run.

    `defaults` are what the catalogue says vLLM uses for flags that aren't given (for rules). `notices` are sentences
    that the user should see before the search starts.
    """

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
    defaults: Mapping[str, FlagValue] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
