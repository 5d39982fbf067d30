"""Whether an engine that failed to start is started once more in the same launch, and how. Pure."""

from __future__ import annotations

import re
from typing import Literal

from autotune.spec.verdict import EngineFailure

SecondStart = Literal["spawned", "without_cache"]
"""`spawned`: as plain `vllm serve`, not forked. `without_cache`: after vtune's compile cache was deleted."""

# What torch and the CUDA runtime say in a process whose parent had used CUDA, or that has its parent's idea of the
# GPUs. (`failure` has no class of its own for these: to a spawned engine some of them mean a busy GPU.)
_FORK_IS_TO_BLAME = re.compile(
    r"Cannot re-initialize CUDA in forked subprocess|CUDA error: initialization error|CUDA_ERROR_NOT_INITIALIZED"
    r"|CUDA driver initialization failed|No CUDA GPUs are available"
)
_SAME_IF_SPAWNED = frozenset({"infra.cancelled", "infra.gpu_busy", "infra.port_race"})


def second_start(
    failure: EngineFailure, *, log: str, forked: bool, proven: bool, own_cache: bool
) -> SecondStart | None:
    """None = the failure stands.

    `proven`: an engine forked by the same server has served before, so that its imports and forks do work; then only
    words that spawned engines never write put the blame on forking. `own_cache`: the engine used vtune's compile cache.
    """
    if failure.cause == "infra.cancelled":
        return None
    if failure.cause == "infra.cache" and own_cache:
        return "without_cache"
    if not forked:
        return None
    if _FORK_IS_TO_BLAME.search(log) is not None:
        return "spawned"
    vague = failure.cause == "unknown" or failure.cause.startswith(("hang.", "infra."))
    return "spawned" if vague and not proven and failure.cause not in _SAME_IF_SPAWNED else None
