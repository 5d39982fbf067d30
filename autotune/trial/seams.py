"""The two seams of a trial. Each has two implementations: the real vLLM with HTTP load, and the simulated pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from autotune.spec.config import EngineConfig
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import LoadBlock
from autotune.spec.verdict import EngineFailure
from autotune.spec.workload import Rung, Workload


class Launcher(Protocol):
    """Starts one engine and owns it for as long as the context lives.

    Entering yields an `Endpoint` once the engine is healthy, or an `EngineFailure` when it can't be: a failure to start
    is a value, not an exception. `cancelled` is asked at least once a second; when it says True the start is
    given up (EngineFailure with cause "infra.cancelled"). Leaving stops the whole process tree, verifies that it is
    gone and its GPU memory is back, and never raises because an engine was already dead.
    """

    def __call__(
        self, config: EngineConfig, devices: Sequence[str], *, name: str, cancelled: Callable[[], bool]
    ) -> AbstractContextManager[Endpoint | EngineFailure]: ...


class Loader(Protocol):
    """Runs one rung of load against an endpoint, as blocks of about a second.

    Blocks rather than single records: a trial must be looked at once a second, also
    while no request ends.

    Prompts derive from `seed` (and the rung's name) alone. Closing the iterator early cancels every request in
    flight within two seconds. Failed requests come as records with an `error`.
    """

    def __call__(self, endpoint: Endpoint, workload: Workload, rung: Rung, *, seed: int) -> Iterator[LoadBlock]: ...
