"""The launcher on a real vLLM. One fork server serves most tests; one engine is spawned."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engine import api
from autotune.engine.compile_cache import CompileCache
from autotune.engine.failure import first_failure
from autotune.engine.fork_server import ForkServer
from autotune.engine.port import listening
from autotune.engine.process import Stat, living, stat_of
from autotune.engine.tiny_model import make_tiny_model
from autotune.engine.vllm import VllmLauncher
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.endpoint import Endpoint
from autotune.spec.verdict import EngineFailure

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

FLAGS: dict[str, FlagValue] = {"max-model-len": 1024, "enforce-eager": True, "kv-cache-memory-bytes": "16M"}

# An owner that starts an engine, says so, and waits to be killed.
OWNER = """
import json, os, sys, time
from pathlib import Path
from autotune.engine.fork_server import ForkServer
from autotune.engine.vllm import VllmLauncher
from autotune.spec.config import EngineConfig
how, model, logs, flags = sys.argv[1], sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4])
python = Path(sys.executable)
server = ForkServer(vllm_python=python, log=logs / "fork-server.log", env=dict(os.environ)) if how == "forked" else None
launcher = VllmLauncher(vllm_python=python, logs=logs, platform="cpu", fork_server=server)
with launcher(EngineConfig(model=model, flags=flags), ["cpu"], name="t", cancelled=lambda: False) as engine:
    print(json.dumps({"url": engine.url, "tokens": engine.facts.kv_cache_tokens}), flush=True)
    time.sleep(600)
"""


def never() -> bool:
    return False


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    log = tmp_path_factory.mktemp("fork") / "fork-server.log"
    with ForkServer(vllm_python=Path(sys.executable), log=log, env=dict(os.environ)) as server:
        yield server


@pytest.fixture
def launcher(fork_server: ForkServer, tmp_path: Path) -> VllmLauncher:
    return VllmLauncher(vllm_python=Path(sys.executable), logs=tmp_path, platform="cpu", fork_server=fork_server)


def members_by_parent(root: int) -> dict[int, Stat]:
    """Living descendants of a process of ours."""
    alive = living()
    ours = {root}
    while more := {pid for pid, stat in alive.items() if stat.parent in ours} - ours:
        ours |= more
    return {pid: alive[pid] for pid in ours - {root}}


def shared_memory(session: int) -> set[Path]:
    """Segments of /dev/shm that an engine's processes have mapped."""
    found = set()
    for pid, stat in living().items():
        if stat.session == session:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if "/dev/shm/" in line:
                    found.add(Path("/dev/shm") / line.rpartition("/")[2])
    return found


def engine_session(endpoint: Endpoint, logs: Path) -> int:
    """The session that listens on the endpoint's port, by the server's own word in its log."""
    lines = (logs / "t" / "engine.log").read_text().splitlines()
    started = next(line for line in lines if "Started server process" in line)
    return int(started.split("[")[-1].rstrip("]"))


def temporary_folder(logs: Path) -> Path:
    """By a rendezvous file's path in the engine's log."""
    text = (logs / "t" / "engine.log").read_text()
    return Path(text.partition("distributed_init_method=file://")[2].split()[0]).parent


def soon(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def failed(launcher: VllmLauncher, model: str, **flags: FlagValue) -> EngineFailure:
    given = {**FLAGS, **{name.replace("_", "-"): value for name, value in flags.items()}}
    with launcher(EngineConfig(model=model, flags=given), ["cpu"], name="t", cancelled=never) as engine:
        assert isinstance(engine, EngineFailure)
        return engine


def test_an_engine_starts_serves_and_stops(launcher: VllmLauncher, model: str) -> None:
    logs = launcher.logs
    with launcher(EngineConfig(model=model, flags=FLAGS), ["cpu"], name="t", cancelled=never) as engine:
        assert isinstance(engine, Endpoint)
        port = int(engine.url.rpartition(":")[2])
        assert engine.failure() is None
        assert engine.facts.vllm_version is not None
        assert engine.facts.kv_cache_tokens is not None
        sample = engine.scrape()
        assert sample is not None
        assert (sample.running, sample.preemptions) == (0, 0)

        # The key is asked for, and is nowhere but in the engine's environment.
        assert (api.get(port, "/v1/models") or (0, ""))[0] == 401
        assert (api.get(port, "/v1/models", api_key=engine.api_key) or (0, ""))[0] == 200
        session = engine_session(engine, logs)
        assert session != os.getsid(0)
        written = "".join(path.read_text() for path in (logs / "t").iterdir())
        assert engine.api_key not in written
        segments, temporary = shared_memory(session), temporary_folder(logs)
        assert segments
        assert list(temporary.iterdir())
        assert engine.api_key not in " ".join(engine.argv) + repr(engine)
    assert not listening(port)
    assert not [pid for pid, stat in living().items() if stat.session == session]
    assert engine.scrape() is None
    assert not [segment for segment in segments if segment.exists()]
    assert not temporary.exists()


def test_a_forked_worker_has_the_cores_that_vllm_chose_for_it(launcher: VllmLauncher, model: str) -> None:
    with launcher(EngineConfig(model=model, flags=FLAGS), ["cpu"], name="t", cancelled=never) as engine:
        assert isinstance(engine, Endpoint)
        text = (launcher.logs / "t" / "engine.log").read_text()
        chosen = json.loads(text.partition("core ids=")[2].splitlines()[0])
        session = engine_session(engine, launcher.logs)
        bound = [os.sched_getaffinity(pid) for pid, stat in living().items() if stat.session == session]
        assert set(chosen) in bound


def test_a_dead_server_is_a_failure_and_its_core_goes_too(launcher: VllmLauncher, model: str) -> None:
    with launcher(EngineConfig(model=model, flags=FLAGS), ["cpu"], name="t", cancelled=never) as engine:
        assert isinstance(engine, Endpoint)
        session = engine_session(engine, launcher.logs)
        os.kill(session, signal.SIGKILL)
        assert soon(lambda: engine.failure() is not None, 10)
        failure = engine.failure()
        assert failure is not None
        assert (failure.stage, failure.exit_code) == ("ready", -signal.SIGKILL)
    assert not [pid for pid, stat in living().items() if stat.session == session]


def test_a_cache_below_one_request_is_a_capacity_failure(launcher: VllmLauncher, model: str) -> None:
    failure = failed(launcher, model, kv_cache_memory_bytes="256K")
    assert (failure.cause, failure.stage) == ("capacity.kv_too_small", "kv_cache")
    assert failure.facts["max_model_len_bound"] < 1024


def test_an_unknown_flag_is_invalid(launcher: VllmLauncher, model: str) -> None:
    failure = failed(launcher, model, no_such_flag=1)
    assert (failure.cause, failure.exit_code) == ("config.invalid", 2)


def test_a_cancelled_start_is_given_up_and_leaves_nothing(launcher: VllmLauncher, model: str) -> None:
    began = time.monotonic()
    with launcher(
        EngineConfig(model=model, flags=FLAGS), ["cpu"], name="t", cancelled=lambda: time.monotonic() > began + 0.5
    ) as engine:
        assert isinstance(engine, EngineFailure)
        assert engine.cause == "infra.cancelled"
    server = launcher.fork_server
    assert server is not None and server._helper is not None
    assert not members_by_parent(server._helper.process.pid)


def test_a_fork_server_that_cannot_import_vllm_is_given_up_once(model: str, tmp_path: Path) -> None:
    """The start then goes on by spawning; here the interpreter is one that can't start an engine either."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    python.chmod(0o755)
    server = ForkServer(vllm_python=python, log=tmp_path / "fork-server.log", env=dict(os.environ))
    launcher = VllmLauncher(vllm_python=python, logs=tmp_path, platform="cpu", fork_server=server)
    assert failed(launcher, model).cause == "env.missing_dependency"
    assert server.broken is not None and "exit code 1" in server.broken


def test_an_engine_that_only_fails_when_forked_is_spawned_in_the_same_launch(model: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif 'BREAK' in os.environ: os.register_at_fork(after_in_child=lambda: os._exit(7))\n"
    )
    env = {**os.environ, "BREAK": "1", "PYTHONPATH": str(tmp_path)}
    with ForkServer(vllm_python=Path(sys.executable), log=tmp_path / "fork-server.log", env=env) as server:
        launcher = VllmLauncher(vllm_python=Path(sys.executable), logs=tmp_path, platform="cpu", fork_server=server)
        with launcher(EngineConfig(model=model, flags=FLAGS), ["cpu"], name="t", cancelled=never) as engine:
            assert isinstance(engine, Endpoint)
        assert server.broken is not None and "started when it was spawned" in server.broken
    assert (tmp_path / "t" / "engine.before-spawned.log").exists()


def test_a_forked_engine_that_may_not_fork_any_more_spawns_its_core(model: str, tmp_path: Path) -> None:
    """As once its API server has initialised CUDA; here it is told so."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "def pretend(): vars(sys.modules['__main__'])['cuda_trace'] = lambda: 'pretended'\n"
        "if 'PRETEND' in os.environ: os.register_at_fork(after_in_child=pretend)\n"
    )
    env = {**os.environ, "PRETEND": "1", "PYTHONPATH": str(tmp_path)}
    with ForkServer(vllm_python=Path(sys.executable), log=tmp_path / "fork-server.log", env=env) as server:
        launcher = VllmLauncher(vllm_python=Path(sys.executable), logs=tmp_path, platform="cpu", fork_server=server)
        with launcher(EngineConfig(model=model, flags=FLAGS), ["cpu"], name="t", cancelled=never) as engine:
            assert isinstance(engine, Endpoint)
            session = engine_session(engine, tmp_path)
            commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in members_by_parent(session)]
            assert any("spawn_main" in command for command in commands)
        assert server.proven


def test_a_broken_compile_cache_costs_one_start_and_is_replaced(
    launcher: VllmLauncher, model: str, tmp_path: Path
) -> None:
    cache = CompileCache(root=tmp_path / "compile", vllm="v", torch="t")
    launcher = replace(launcher, compile_cache=cache)
    config = EngineConfig(model=model, flags={**FLAGS, "enforce-eager": False})
    with launcher(config, ["cpu"], name="t", cancelled=never) as engine:
        assert isinstance(engine, Endpoint)
    generated = [path for path in cache.root.rglob("*.py") if path.stat().st_size > 1000]
    assert generated
    for path in generated:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with launcher(config, ["cpu"], name="again", cancelled=never) as engine:
        assert isinstance(engine, Endpoint)
    assert first_failure((tmp_path / "again" / "engine.before-without_cache.log").read_text()) is not None
    whole = [path for path in cache.root.rglob("*.py") if path.stat().st_size > 1000]
    assert whole and all(compile(path.read_text(), str(path), "exec") for path in whole)


@pytest.mark.parametrize("how", ["forked", "spawned"])
def test_no_engine_outlives_a_killed_owner(how: str, model: str, tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, how, model, str(tmp_path), json.dumps(FLAGS)], stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    told = json.loads(owner.stdout.readline())
    port = int(told["url"].rpartition(":")[2])
    assert api.healthy(port)
    assert told["tokens"] is not None
    started = members_by_parent(owner.pid)
    assert len(started) >= 3  # API server, engine core, worker
    segments = {segment for stat in started.values() for segment in shared_memory(stat.session)}
    assert segments
    owner.kill()
    owner.wait()
    owner.stdout.close()

    def gone() -> bool:
        now = {pid: stat_of(pid) for pid in started}
        return not any(s is not None and s.alive and s.start == started[pid].start for pid, s in now.items())

    assert soon(gone, 10)
    assert not listening(port)
    assert not [segment for segment in segments if segment.exists()]
    assert soon(lambda: not temporary_folder(tmp_path).exists(), 2)


def test_engines_poll_each_other_without_sched_yield() -> None:
    """On some kernels that starves whatever else runs on the same core, for seconds (see `wait_without_yielding`)."""
    program = """
import os, runpy
runpy.run_path("autotune/engine/inside/fork_server.py")["wait_without_yielding"]()
from vllm.distributed import utils
calls = []
os.sched_yield = lambda: calls.append("yield")
utils.sched_yield()
print(calls)
"""
    root = Path(__file__).parents[2]
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=True)
    assert said.stdout.splitlines()[-1] == "[]"
