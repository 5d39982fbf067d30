"""Which launcher and loader a trial gets: the real vLLM with HTTP load, or the simulated pair."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from autotune.engine.compile_cache import CompileCache, cache_root
from autotune.engine.environment import vllm_versions
from autotune.engine.fork_server import ForkServer
from autotune.engine.model_files import resolve_model
from autotune.engine.reuse import ReusingLauncher
from autotune.engine.simulated import SimulatedLauncher
from autotune.engine.vllm import VllmLauncher
from autotune.load.http import HttpLoader
from autotune.load.simulated import SimulatedLoader
from autotune.run.options import SearchOptions
from autotune.spec.config import EngineConfig
from autotune.spec.live import LiveSplit
from autotune.trial.seams import Launcher, Loader

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKit:
    """How engines are made on any node; small and picklable, it travels to every actor."""

    options: SearchOptions
    known_flags: frozenset[str] = frozenset()
    split: LiveSplit | None = None
    """None: every trial starts an engine of its own."""

    def devices(self, gpu_ids: Sequence[str]) -> tuple[str, ...]:
        """What Ray gave this actor. A CPU engine's device is the machine itself."""
        return tuple(gpu_ids) if gpu_ids else ("cpu",)

    def open(self, logs: Path, *, watched: tuple[int, ...] = ()) -> Engines:
        """`watched`: processes of this host whose death ends the engines, whatever Ray does (the driver)."""
        if self.options.simulate:
            scale = self.options.time_scale
            simulated = SimulatedLauncher(time_scale=scale)
            return Engines(
                usual=simulated,
                plain=simulated,
                reusing=ReusingLauncher(start=simulated, split=self.split) if self.split else None,
                loader=SimulatedLoader(time_scale=scale),
                clock=lambda: 0.0,  # simulated seconds come with the endpoint and the blocks
                versions={"vllm": "simulated"},
                python=Path(sys.executable),
                resolves=False,
            )
        python = self.options.vllm_python or Path(sys.executable)
        on_cpu = self.options.platform == "cpu"
        server = None
        if self.options.fork:  # Ray's CUDA_VISIBLE_DEVICES is in the environment: it sees the GPUs of its engines
            server = ForkServer(vllm_python=python, log=logs / "fork-server.log", env=dict(os.environ))
        versions = vllm_versions(python)
        launcher = VllmLauncher(
            vllm_python=python,
            logs=logs,
            platform="cpu" if on_cpu else "cuda",
            fork_server=server,
            compile_cache=CompileCache(root=cache_root(), vllm=versions["vllm"], torch=versions.get("torch", "")),
            known_flags=self.known_flags or None,
            also_watched=watched,
        )
        return Engines(
            usual=launcher,
            plain=launcher.plain(),
            reusing=ReusingLauncher(start=replace(launcher, live=True), split=self.split) if self.split else None,
            loader=HttpLoader(),
            clock=time.monotonic,
            versions=versions,
            python=python,
            on_close=server.close if server else None,
        )


@dataclass(slots=True, kw_only=True)
class Engines:
    """Opened on a node; keeps what outlives a trial (the fork server, and with `reusing` an engine)."""

    usual: Launcher
    plain: Launcher
    """Of engines as they will be in use; a confirmation measures these."""
    loader: Loader
    clock: Callable[[], float]
    versions: dict[str, str]
    python: Path
    reusing: ReusingLauncher | None = None
    resolves: bool = True
    on_close: Callable[[], None] | None = None
    _models: dict[str, str] = field(default_factory=dict)

    def resolve(self, config: EngineConfig) -> EngineConfig:
        """Model names that vtune itself knows (`builtin:tiny`) become a folder on this node."""
        if not self.resolves:
            return config
        if config.model not in self._models:
            self._models[config.model] = resolve_model(config.model, self.python)
        return replace(config, model=self._models[config.model])

    def launcher(self, engine: Literal["shared", "own", "plain"]) -> Launcher:
        """For a trial's task. An engine that is in the way of a plain one is ended first."""
        if engine == "plain":
            if self.reusing is not None:
                self.reusing.close()
            return self.plain
        if self.reusing is None:
            return self.usual
        return self.reusing if engine == "shared" else self.reusing.own

    @property
    def holds(self) -> EngineConfig | None:
        """What the engine that is kept between trials was started with, under the model's own name."""
        return self.named(self.reusing.holds) if self.reusing and self.reusing.holds else None

    def named(self, config: EngineConfig) -> EngineConfig:
        """The inverse of `resolve`."""
        names = {folder: name for name, folder in self._models.items()}
        return replace(config, model=names.get(config.model, config.model))

    @property
    def log_name(self) -> str | None:
        """The log folder of the engine that is kept."""
        return self.reusing.log_name if self.reusing else None

    def close(self) -> None:
        if self.reusing is not None:
            self.reusing.close()
        if self.on_close is not None:
            self.on_close()
