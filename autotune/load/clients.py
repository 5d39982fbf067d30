"""How many client processes a rung needs, and how its load is shared out among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from autotune.load.traffic import PlannedRequest, plan
from autotune.spec.workload import ClosedLoop, Rung, Workload

_LOOKED_AT = 200
_TOKEN_US, _REQUEST_US, _PROMPT_TOKEN_US = 40.0, 600.0, 0.5
"""CPU that the client takes: twice what was measured (docs/measurement.md), since a server's cores are slower."""

_FULL = 0.5
"""The share of a core a client is planned to use: a queue at half load is short, so requests go out on time."""

_FASTEST_STREAM_TOK_PER_S = 100.0
"""A closed loop's rate is only known afterwards. Faster streams than this are those of engines with few of them."""


def clients_for(workload: Workload, rung: Rung, *, seed: int, cores: int) -> int:
    """At least 1; at most half the cores, which the engine needs too, and no more than there is load to share."""
    planned = list(itertools.islice(plan(workload, rung, seed=seed), min(_LOOKED_AT, max(2, rung.requests))))
    tokens = _mean([request.n * request.output_tokens for request in planned])
    per_request_s = 1e-6 * (
        _REQUEST_US
        + _TOKEN_US * tokens
        + _PROMPT_TOKEN_US * _mean([float(request.prompt_tokens) for request in planned])
    )
    needed = math.ceil(_requests_per_s(rung, planned, tokens) * per_request_s / _FULL)
    return max(1, min(needed, cores // 2, _most(rung)))


def shares(rung: Rung, clients: int) -> list[Rung]:
    """What each of them sends of a rung; a closed loop's requests are shared out as its concurrency is.

    Raises ValueError for more clients than a closed loop has concurrency, and for less than one.
    """
    if not 1 <= clients <= _most(rung):
        raise ValueError(f"{clients} clients can't share the load of {rung.name}")
    if not isinstance(rung.arrivals, ClosedLoop):
        return [replace(rung, requests=len(range(shard, rung.requests, clients))) for shard in range(clients)]
    concurrency = rung.arrivals.concurrency
    ends = [concurrency * shard // clients for shard in range(clients + 1)]
    return [
        replace(
            rung,
            arrivals=ClosedLoop(concurrency=upper - lower),
            requests=rung.requests * upper // concurrency - rung.requests * lower // concurrency,
        )
        for lower, upper in itertools.pairwise(ends)
    ]


def _most(rung: Rung) -> int:
    return rung.arrivals.concurrency if isinstance(rung.arrivals, ClosedLoop) else max(1, rung.requests)


def _requests_per_s(rung: Rung, planned: Sequence[PlannedRequest], tokens: float) -> float:
    if isinstance(rung.arrivals, ClosedLoop):
        sequences = rung.arrivals.concurrency * _mean([float(request.n) for request in planned])
        return sequences * _FASTEST_STREAM_TOK_PER_S / tokens
    arrivals_s = [request.scheduled_s for request in planned if request.scheduled_s is not None]
    return len(arrivals_s) / max(arrivals_s[-1], 1e-3) if arrivals_s else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
