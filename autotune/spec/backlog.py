"""Load under which a latency measures the backlog and not the engine: all at once, or far more clients than it takes.

Such a rung shows throughput. Its time to the first token is how long the queue was, so candidates that take more
requests at once win by it whatever a user would wait (vllm-project/vllm#4252).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.spec.config import FlagValue
from autotune.spec.objective import Objective, Slo
from autotune.spec.space import SearchSpace
from autotune.spec.workload import ClosedLoop, Rung, Workload

_FAR_ABOVE = 2
"""Clients for each request that the largest candidate runs: beyond it most of them always wait."""

_WAITED = ("ttft", "e2e")


def backlog(rung: Rung, *, most_running: int | None = None) -> str | None:
    """What makes the rung a backlog, as the end of a sentence about it; None where it isn't one.

    `most_running`: requests that any candidate runs at once, None where that isn't known.
    """
    if rung.at_once:
        return f"sends its {rung.requests} requests all at once"
    clients = rung.arrivals.concurrency if isinstance(rung.arrivals, ClosedLoop) else 0
    if most_running is not None and clients > _FAR_ABOVE * most_running:
        return f"has {clients} clients for an engine that runs {most_running} requests at most"
    return None


def backlog_notices(
    space: SearchSpace,
    workload: Workload,
    *,
    objectives: Sequence[Objective],
    slos: Sequence[Slo],
    defaults: Mapping[str, FlagValue],
) -> tuple[str, ...]:
    """One for latencies that are judged on a backlog: those of the last reference rung."""
    judged = [*(slo.metric for slo in slos), *(objective.metric for objective in objectives)]
    metrics = [metric for metric in judged if metric.startswith(_WAITED)]
    why = backlog(workload.reference, most_running=_most_running(space, defaults))
    if not metrics or why is None:
        return ()
    return (
        f"{' and '.join(dict.fromkeys(metrics))} will be that of a saturated engine: rung {workload.reference.name} "
        f"{why}, so it is how long the backlog takes and not what a user waits. Name a rung with a rate last in "
        "reference_rungs, or judge by throughput",
    )


def _most_running(space: SearchSpace, defaults: Mapping[str, FlagValue]) -> int | None:
    """None where a candidate may run as many as vLLM itself chooses, and nobody knows how many that is."""
    most = 1
    for flag, known in (("max-num-seqs", None), ("data-parallel-size", 1)):
        values = list(space.values_of(flag)) or [defaults.get(flag, known)]
        if not all(isinstance(value, int) for value in values):
            return None
        most *= max(int(value) for value in values if value is not None)
    return most
