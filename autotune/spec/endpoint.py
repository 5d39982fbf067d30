"""A running engine, as the load and the trial see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.measurement import EngineSample, StartFacts
from autotune.spec.verdict import Books, EngineFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """`url` has no path (http://127.0.0.1:PORT). `api_key` is random per engine and never printed.

    `config` is what it runs as; `launched` what its process was started with, where live settings made the difference.
    `start_s`: from the start of its process until it was healthy, or what changing its live settings took (`reused`);
    `ahead`: what its devices were busy with before that, to make room for it.

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
    retune: Callable[[Mapping[str, FlagValue]], str | None] | None = field(default=None, repr=False)
    """Changes live settings and empties the prefix cache, once no request runs or waits (`spec.live`); says why not,
    where the engine doesn't. None: it has no live settings."""
    launched: EngineConfig | None = None
    reused: bool = False
    ahead: Books = field(default_factory=Books)
    bears: Callable[[int], bool] | None = field(default=None, repr=False)
