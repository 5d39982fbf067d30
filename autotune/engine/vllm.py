"""The real vLLM as a `Launcher`: one engine, a process tree of its own OS session, owned from start to verified end."""

from __future__ import annotations

import json
import logging
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from autotune.engine import api, gpus, live
from autotune.engine.command import (
    Platform,
    engine_arguments,
    engine_environment,
    environment_for_record,
    served_model_name,
    start_command,
)
from autotune.engine.compile_cache import CacheFolder, CompileCache, plain_caches
from autotune.engine.environment import cpu_model
from autotune.engine.failure import classify
from autotune.engine.fork_server import ForkServer, ForkServerBroken
from autotune.engine.guard import MARK, guarding
from autotune.engine.metrics import missing_metrics
from autotune.engine.port import held_port, listening
from autotune.engine.process import EngineProcess, stat_of
from autotune.engine.second_start import SecondStart, second_start
from autotune.engine.start_log import compilations, read_facts
from autotune.engine.startup import Startup
from autotune.errors import EnvironmentProblem
from autotune.spec.config import EngineConfig
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import EngineSample
from autotune.spec.verdict import EngineFailure

_log = logging.getLogger(__name__)
_POLL_S = 0.1
_SPAWNED_FROM_NOW_ON = "engines are spawned from now on (20 s or more each): the fork server is given up: %s"
_AGAIN: Mapping[SecondStart, str] = {
    "spawned": "spawned instead of forked",
    "without_cache": "without what was compiled before",
}


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """One try of a start: how it is made, and what came of that."""

    spawn: bool
    forked: bool = False
    cache: CacheFolder | None = None
    """The compile cache, where the engine keeps anything in one of vtune's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmLauncher:
    """Starts engines with the vLLM of `vllm_python`; each leaves `engine.log` and `argv.json` in `logs/<name>/`.

    `fork_server`: where given, engines are forked from it, except for candidates whose environment variables would have
    to be there when vLLM is imported; when it breaks, engines are spawned from then on. `compile_cache`: vtune's own.
    A start that either of them may be to blame for is made once more without (`engine.second_start`); what the first
    try wrote stays beside the log, as `engine.before-<how>.log`.
    `inherited` is the environment engines start from; `also_watched` are pids on this node (a driver's) whose death,
    like the owner's, ends the engine. `known_flags`: this vLLM's flags, as `command.engine_arguments` takes them.

    A start is given up as hung after `silent_s` without a new log line and without CPU time used, after four times that
    without a line, and after `start_timeout_s` whatever happens. A slow weight load uses CPU or writes lines.
    """

    vllm_python: Path
    logs: Path
    platform: Platform
    fork_server: ForkServer | None = None
    compile_cache: CompileCache | None = None
    known_flags: Collection[str] | None = None
    inherited: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    extra_env: Mapping[str, str] = field(default_factory=dict)
    live: bool = False
    """Whether engines get the plugin for live settings (`engine.live`); plain `vllm serve` has none."""
    also_watched: tuple[int, ...] = ()
    start_timeout_s: float = 3600.0
    silent_s: float = 300.0
    grace_s: float = 15.0

    def __call__(
        self, config: EngineConfig, devices: Sequence[str], *, name: str, cancelled: Callable[[], bool]
    ) -> AbstractContextManager[Endpoint | EngineFailure]:
        """See `autotune.trial.seams.Launcher`. `devices`: GPU indices or UUIDs (on a CPU they are ignored).

        Raises UserError for a flag that only vtune may set, EnvironmentProblem when processes can't be ended.
        """
        return self._engine(config, tuple(devices), name=name, cancelled=cancelled)

    def plain(self) -> VllmLauncher:
        """The same without plugin, and every GPU engine spawned. CPU engines stay forked (`wait_without_yielding`)."""
        return replace(self, fork_server=None if self.platform == "cuda" else self.fork_server, live=False)

    @contextmanager
    def _engine(
        self, config: EngineConfig, devices: tuple[str, ...], *, name: str, cancelled: Callable[[], bool]
    ) -> Iterator[Endpoint | EngineFailure]:
        log = self.logs / name / "engine.log"
        done: set[SecondStart] = set()
        while True:
            attempt = _Attempt(spawn="spawned" in done)
            with self._one_start(config, devices, name=name, cancelled=cancelled, attempt=attempt) as started:
                again = self._second_start(started, attempt, log)
                if again is None or again in done:
                    self._learn(started, attempt)
                    yield started
                    return
            if again == "without_cache" and attempt.cache is not None:
                _discard(attempt.cache)
            _log.warning("%s failed to start and is started again, %s", name, _AGAIN[again])
            log.rename(log.with_name(f"engine.before-{again}.log"))
            done.add(again)

    def _second_start(self, started: Endpoint | EngineFailure, attempt: _Attempt, log: Path) -> SecondStart | None:
        if isinstance(started, Endpoint):
            return None
        return second_start(
            started,
            log=log.read_text("utf-8", "replace"),
            forked=attempt.forked,
            proven=self.fork_server is not None and self.fork_server.proven,
            own_cache=attempt.cache is not None,
        )

    def _learn(self, started: Endpoint | EngineFailure, attempt: _Attempt) -> None:
        """What a start says about forking: it works, or failed where spawning didn't."""
        if self.fork_server is None or isinstance(started, EngineFailure):
            return
        if attempt.forked:
            self.fork_server.proven = True
        elif attempt.spawn:
            self.fork_server.give_up("an engine that failed when it was forked started when it was spawned")
            _log.warning(_SPAWNED_FROM_NOW_ON, self.fork_server.broken)

    @contextmanager
    def _one_start(
        self,
        config: EngineConfig,
        devices: tuple[str, ...],
        *,
        name: str,
        cancelled: Callable[[], bool],
        attempt: _Attempt,
    ) -> Iterator[Endpoint | EngineFailure]:
        folder = (self.logs / name).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "engine.log"
        log.write_bytes(b"")
        api_key, mark = secrets.token_urlsafe(24), secrets.token_hex(16)
        with ExitStack() as stack:
            port = stack.enter_context(held_port())
            arguments = engine_arguments(config, port=port, known_flags=self.known_flags)
            cache = self.compile_cache.folder(self._hardware(devices)) if self.compile_cache is not None else None
            if self.live:
                arguments += live.ARGUMENTS
            env = engine_environment(
                config,
                devices,
                platform=self.platform,
                inherited=self.inherited,
                extra=self.extra_env,
                cores=len(os.sched_getaffinity(0)),
                caches=cache.variables() if cache is not None else plain_caches(),
            )
            attempt.cache = cache if cache is not None and cache.used_by(env) else None
            _write_argv(folder / "argv.json", start_command(self.vllm_python, arguments), env, config, devices)
            before_gib = gpus.used_gib(devices) if self.platform == "cuda" else {}
            # vLLM leaves sockets and rendezvous files in its temporary folder at every start.
            temporary = Path(stack.enter_context(TemporaryDirectory(prefix="vtune-", ignore_cleanup_errors=True)))
            env |= {"TMPDIR": str(temporary), "VLLM_API_KEY": api_key, MARK: mark}
            if self.live:
                env |= live.inject(temporary, env)
            guard = stack.enter_context(
                guarding(mark, log=folder / "guard.log", folder=temporary, also=self.also_watched)
            )
            process = self._start(arguments, env, config, log, cancelled, attempt)
            began = time.monotonic()
            if process is None:
                yield EngineFailure(stage="imports", cause="infra.cancelled", evidence="cancelled before its start")
                return
            guard.watch(process.pid, process.start)
            startup = Startup(log=log, began_s=began)
            stack.callback(self._stop, process, startup, port, before_gib)
            failure = self._wait_until_healthy(process, startup, port, cancelled)
            if failure is None:
                wrong = api.who_answers(port, api_key=api_key, served_model=served_model_name(config))
                if wrong is not None:
                    failure = EngineFailure(stage="ready", cause="infra.port_race", evidence=wrong)
            if failure is not None:
                yield replace(failure, after_s=time.monotonic() - began)
                return
            yield Endpoint(
                url=f"http://127.0.0.1:{port}",
                api_key=api_key,
                served_model=served_model_name(config),
                config=config,
                devices=devices,
                argv=tuple(start_command(self.vllm_python, arguments)),
                start_s=time.monotonic() - began,
                facts=replace(read_facts(startup.text()), metric_names=_metric_names(port)),
                scrape=lambda: self._scrape(port, devices, startup),
                failure=lambda: self._failure_of(process, startup),
                retune=live.LiveSettings(port=port, api_key=api_key).retune if self.live else None,
            )

    def _start(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        config: EngineConfig,
        log: Path,
        cancelled: Callable[[], bool],
        attempt: _Attempt,
    ) -> EngineProcess | None:
        """The engine's first process; None when the start was cancelled before there was one."""
        server = self.fork_server
        if server is not None and server.broken is None and not attempt.spawn and _settable_after_import(config):
            try:
                if not server.prepare(cancelled):
                    return None
                process = server.start(arguments, env=env, log=log)
            except ForkServerBroken as error:
                _log.warning(_SPAWNED_FROM_NOW_ON, error)
            else:
                attempt.forked = True
                return process
        with log.open("ab") as output:
            popen = subprocess.Popen(
                start_command(self.vllm_python, arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(env),
                start_new_session=True,
            )
        stat = stat_of(popen.pid)
        assert stat is not None, "our own child stays visible until it is waited for"
        return EngineProcess(pid=popen.pid, start=stat.start, exit_code=popen.poll)

    def _wait_until_healthy(
        self, process: EngineProcess, startup: Startup, port: int, cancelled: Callable[[], bool]
    ) -> EngineFailure | None:
        while True:
            startup.look(process.cpu_s)
            if cancelled():
                return EngineFailure(
                    stage=startup.stage, cause="infra.cancelled", evidence="cancelled during the start"
                )
            code = process.exit_code()
            if code is not None:
                return classify(startup.text(), exit_code=code, stage=startup.stage, device_gib=self._device_gib())
            if api.healthy(port):
                return None
            hang = startup.hang(silent_s=self.silent_s, start_timeout_s=self.start_timeout_s)
            if hang is not None:
                return hang
            time.sleep(_POLL_S)

    def _scrape(self, port: int, devices: Sequence[str], startup: Startup) -> EngineSample | None:
        sample = api.scrape(port)
        if sample is None or self.platform == "cpu":
            return sample
        return replace(sample, throttled_by=gpus.throttled_by(devices), compilations=compilations(startup.text()))

    def _failure_of(self, process: EngineProcess, startup: Startup) -> EngineFailure | None:
        """None while the engine lives. It is dead, too, when its log says that its core died."""
        code = process.exit_code()
        if code is None and not startup.core_died():
            return None
        found = classify(startup.text(), exit_code=code, stage="ready", device_gib=self._device_gib())
        return replace(found, after_s=time.monotonic() - startup.began_s)

    def _hardware(self, devices: Sequence[str]) -> str:
        """What compiled code depends on besides versions. The GPUs of one engine are of one kind."""
        if self.platform == "cpu":
            return f"cpu: {cpu_model()}"
        gpu = gpus.find(gpus.all_gpus(), devices[0]) if devices else None
        return f"{gpu.name}, driver {gpu.driver}" if gpu is not None else "a GPU that NVML doesn't know"

    def _device_gib(self) -> float | None:
        """Memory of what an engine rank runs on, for shortfalls: the smallest GPU, or the host's RAM."""
        if self.platform == "cpu":
            return float(psutil.virtual_memory().total) / 1024**3
        return min((gpu.total_gib for gpu in gpus.all_gpus()), default=None)

    def _stop(self, process: EngineProcess, startup: Startup, port: int, before_gib: Mapping[str, float]) -> None:
        """Ends every process of the engine and waits for its GPU memory. Raises EnvironmentProblem if one won't end."""
        began = time.monotonic()
        # An engine in the middle of its start often doesn't heed SIGTERM, and has nothing to finish.
        left = process.end(grace_s=self.grace_s if startup.stage == "ready" else min(1.0, self.grace_s))
        if left:
            raise EnvironmentProblem(
                f"processes {', '.join(map(str, left))} of an engine are still there after SIGKILL; "
                "look at them with ps, and restart the machine's GPU driver or the machine if they stay"
            )
        if listening(port):
            _log.warning("something still listens on port %d although the engine is gone", port)
        missing = gpus.wait_for_memory_back(before_gib) if before_gib else {}
        for device, gib in missing.items():
            _log.warning("GPU %s still uses %.1f GiB more than before an engine that is gone", device, gib)
        _log.info("the engine was stopped in %.1f s", time.monotonic() - began)


def _metric_names(port: int) -> str | None:
    """For the record, as JSON; those that this vLLM has under no known name are warned of."""
    names = api.metric_names(port)
    if names is None:
        return None
    if (missing := missing_metrics(names)) is not None:
        _log.warning("%s", missing)
    return json.dumps(names)


def _discard(cache: CacheFolder) -> None:
    try:
        if cache.discard():
            _log.warning("the compile cache %s was broken and is deleted: the next starts compile anew", cache.path)
    except OSError as error:
        _log.warning("the compile cache %s is broken and can't be deleted: %s", cache.path, error)


def _settable_after_import(config: EngineConfig) -> bool:
    """vLLM reads its own variables when it uses them; others (OMP_*, LD_PRELOAD, TORCH_*) count at import or load."""
    return all(name.startswith("VLLM_") for name in config.env)


def _write_argv(
    path: Path, argv: Sequence[str], env: Mapping[str, str], config: EngineConfig, devices: Sequence[str]
) -> None:
    record = {"argv": argv, "devices": devices, "env": environment_for_record(env, config)}
    path.write_text(json.dumps(record, indent=1) + "\n")
