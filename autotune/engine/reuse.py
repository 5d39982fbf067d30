"""One engine start, many trials: a `Launcher` that keeps the engine of the trial before, where it can be made to run as
the next candidate (docs/live-settings.md).

What an engine shows of memory (out of memory, KV-cache size) belongs to what it was started with, so a failure of an
engine that was started for several candidates, or changed since, is no verdict on any of them: such a start is repeated
with the candidate's own flags.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from autotune.spec.config import EngineConfig
from autotune.spec.endpoint import Endpoint
from autotune.spec.live import LiveSplit
from autotune.spec.verdict import Books, EngineFailure

_log = logging.getLogger(__name__)


class _Start(Protocol):
    """As `autotune.trial.seams.Launcher`, which this layer doesn't know: the real vLLM or the simulated one."""

    def __call__(
        self, config: EngineConfig, devices: Sequence[str], *, name: str, cancelled: Callable[[], bool]
    ) -> AbstractContextManager[Endpoint | EngineFailure]: ...


@dataclass(slots=True, kw_only=True)
class _Held:
    """An engine between its start and its end."""

    started: EngineConfig
    endpoint: Endpoint
    owned: ExitStack
    name: str


@dataclass(slots=True, kw_only=True)
class ReusingLauncher:
    """Starts engines with `start` and keeps the last of them. Not for several threads at once."""

    start: _Start
    split: LiveSplit
    _held: _Held | None = None

    def __call__(
        self, config: EngineConfig, devices: Sequence[str], *, name: str, cancelled: Callable[[], bool]
    ) -> AbstractContextManager[Endpoint | EngineFailure]:
        """See `autotune.trial.seams.Launcher`; leaving keeps an engine that lives and is idle."""
        return self._engine(config, tuple(devices), name, cancelled)

    def own(
        self, config: EngineConfig, devices: Sequence[str], *, name: str, cancelled: Callable[[], bool]
    ) -> AbstractContextManager[Endpoint | EngineFailure]:
        """The same with a new engine that is started with exactly these flags."""
        return self._engine(config, tuple(devices), name, cancelled, own=True)

    @property
    def holds(self) -> EngineConfig | None:
        """What the engine that is kept was started with."""
        return None if self._held is None else self._held.started

    @property
    def log_name(self) -> str | None:
        """The log folder of the engine that is kept."""
        return None if self._held is None else self._held.name

    def close(self) -> None:
        """Ends the engine that is kept. Raises as `start`'s contexts do."""
        held, self._held = self._held, None
        if held is not None:
            held.owned.close()

    @contextmanager
    def _engine(
        self,
        config: EngineConfig,
        devices: tuple[str, ...],
        name: str,
        cancelled: Callable[[], bool],
        *,
        own: bool = False,
    ) -> Iterator[Endpoint | EngineFailure]:
        began = time.monotonic()
        found: Endpoint | EngineFailure | None = None if own else self._changed(config, devices)
        if found is None:
            self.close()
            starts = (config,) if own else (self.split.start_for(config), config)
            found = self._started(config, starts, devices, name, cancelled, cleared_s=time.monotonic() - began)
        if isinstance(found, EngineFailure):
            yield found
            return
        try:
            yield found
        except BaseException:
            self.close()
            raise
        self._keep(found)

    def _changed(self, config: EngineConfig, devices: tuple[str, ...]) -> Endpoint | None:
        """The engine that is kept, running as `config`; None where it can't."""
        held = self._held
        if held is None or held.endpoint.devices != devices or held.endpoint.failure() is not None:
            return None
        settings = self.split.settings(config)
        if settings is None or held.endpoint.retune is None or not self.split.reaches(held.started, config):
            return None
        began = time.monotonic()
        if (why := held.endpoint.retune(settings)) is not None:
            _log.warning("an engine is restarted: %s", why)
            return None
        return replace(
            held.endpoint, config=config, launched=held.started, reused=True, start_s=time.monotonic() - began
        )

    def _started(
        self,
        config: EngineConfig,
        starts: Sequence[EngineConfig],
        devices: tuple[str, ...],
        name: str,
        cancelled: Callable[[], bool],
        *,
        cleared_s: float,
    ) -> Endpoint | EngineFailure:
        """A new engine for `config` and its neighbours; where that fails, one for `config` alone."""
        ahead = Books(stop_s=cleared_s)
        for started in starts:
            began = time.monotonic()
            found = self._start(started, devices, name, cancelled)
            settings = self.split.settings(config)
            if isinstance(found, Endpoint) and started.key != config.key and settings is not None:
                why = "it has no live settings" if found.retune is None else found.retune(settings)
                if why is not None:
                    _log.warning("an engine is started for one configuration alone: %s", why)
                    found = EngineFailure(stage="ready", cause="config.not_applied", evidence=why)
                    self.close()
            if isinstance(found, Endpoint):
                return replace(found, config=config, launched=started, ahead=ahead)
            if started.key == config.key or not found.blames_configuration or cancelled():
                return found
            _log.info("an engine for several configurations can't start: %s", found.evidence)
            ahead = ahead + Books(dead_s=max(found.after_s, time.monotonic() - began))
        raise AssertionError("the last start is config's own")

    def _start(
        self, config: EngineConfig, devices: tuple[str, ...], name: str, cancelled: Callable[[], bool]
    ) -> Endpoint | EngineFailure:
        owned = ExitStack()
        try:
            found = owned.enter_context(self.start(config, devices, name=name, cancelled=cancelled))
        except BaseException:
            owned.close()
            raise
        if isinstance(found, EngineFailure):
            owned.close()
            return found
        self._held = _Held(started=config, endpoint=found, owned=owned, name=name)
        return found

    def _keep(self, used: Endpoint) -> None:
        """After a trial: only an engine that lives, and has nothing left to do within two seconds."""
        held = self._held
        settings = self.split.settings(used.config)
        if held is None:
            return
        why = "it is of no use to other configurations"
        if used.failure() is not None:
            why = "it died"
        elif settings is not None and used.retune is not None:
            if (refused := used.retune(settings)) is None:
                return
            why = refused
        _log.info("an engine isn't kept: %s", why)
        self.close()
