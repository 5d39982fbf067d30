"""A running engine, as the load and the trial see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.spec.config import EngineConfig
from autotune.spec.measurement import EngineSample, StartFacts
from autotune.spec.verdict import EngineFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """`url` has no path (http://127.0.0.1:PORT). `api_key` is random per engine and never printed.

    `scrape()` reads the engine's metrics now; None when it doesn't answer. `failure()` is None while the engine lives
    and the classified failure once its process has died. `bears(sequences)`, of a simulated engine alone: whether
    it lives on with so many running at once; where it says False it has died of them.
    """

    url: str
    api_key: str = field(repr=False)
    served_model: str
    config: EngineConfig
    devices: tuple[str, ...]
    argv: tuple[str, ...]
    start_s: float
    facts: StartFacts
    scrape: Callable[[], EngineSample | None] = field(repr=False)
    failure: Callable[[], EngineFailure | None] = field(repr=False)
    bears: Callable[[int], bool] | None = field(default=None, repr=False)
