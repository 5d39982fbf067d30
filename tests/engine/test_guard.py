"""A guard ends an engine whose owner died, and nothing else. The engines here are small process trees of sleepers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from autotune.engine.guard import MARK, guarding
from autotune.engine.process import EngineProcess, living, stat_of

# An API server with an engine core (same session), which has a worker; each ignores SIGTERM if told to.
TREE = """
import os, signal, sys, time
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
core = os.fork()
if core == 0:
    worker = os.fork()
    print(os.getpid(), flush=True)
time.sleep(60)
"""
OWNER = """
import json, subprocess, sys, time
from pathlib import Path
from autotune.engine.guard import MARK, guarding
from autotune.engine.process import stat_of
log, watched, tree = Path(sys.argv[1]), sys.argv[2] == "watched", sys.argv[3]
with guarding(sys.argv[4], log=log, folder=log.parent / "temporary", grace_s=0.3) as guard:
    env = {MARK: sys.argv[4]}
    engine = subprocess.Popen([sys.executable, "-c", tree], start_new_session=True, env=env, stdout=subprocess.PIPE)
    if watched:
        guard.watch(engine.pid, stat_of(engine.pid).start)
    core, worker = engine.stdout.readline(), engine.stdout.readline()
    print(json.dumps([engine.pid, int(core), int(worker)]), flush=True)
    time.sleep(60)
"""


def alive(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat.alive


def guards(mark: str) -> list[int]:
    """A guard is no child of its owner; its mark is in its arguments."""
    found = []
    for pid in living():
        with suppress(OSError):
            if f"{MARK}={mark}" in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                found.append(pid)
    return found


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


def soon(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Another session's process with the same command line as an engine's."""
    process = subprocess.Popen([sys.executable, "-c", TREE.replace("os.fork()", "1")], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def engine() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", TREE], start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def owned(popen: subprocess.Popen[bytes]) -> EngineProcess:
    stat = stat_of(popen.pid)
    assert stat is not None
    return EngineProcess(pid=popen.pid, start=stat.start, exit_code=popen.poll)


@pytest.mark.timeout(15)
@pytest.mark.parametrize("watched", ["watched", "not yet watched"])
def test_a_killed_owner_leaves_nothing(
    tmp_path: Path, mark: str, watched: str, bystander: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "temporary" / "socket").touch()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "guard.log"), watched, TREE, mark], stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    pids = json.loads(owner.stdout.readline())
    assert all(alive(pid) for pid in pids)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert soon(lambda: not any(alive(pid) for pid in pids) and not guards(mark), 8)
    assert alive(bystander.pid)
    assert "the engine is gone" in (tmp_path / "guard.log").read_text()
    assert not (tmp_path / "temporary").exists()


@pytest.mark.timeout(15)
def test_the_death_of_a_further_watched_process_ends_the_engine(
    tmp_path: Path, mark: str, engine: subprocess.Popen[bytes]
) -> None:
    driver = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with guarding(
        "none", log=tmp_path / "guard.log", folder=tmp_path / "temporary", also=[driver.pid], grace_s=0.3
    ) as guard:
        guard.watch(engine.pid, owned(engine).start)
        driver.kill()
        driver.wait()
        assert soon(lambda: engine.poll() is not None, 8)


def test_a_released_guard_ends_without_touching_the_engine(
    tmp_path: Path, mark: str, engine: subprocess.Popen[bytes]
) -> None:
    with guarding(mark, log=tmp_path / "guard.log", folder=tmp_path / "temporary") as guard:
        guard.watch(engine.pid, owned(engine).start)
    assert soon(lambda: not guards(mark), 1)
    assert engine.poll() is None


@pytest.mark.timeout(15)
def test_a_recorded_number_that_belongs_to_someone_else_is_left_alone(
    tmp_path: Path, mark: str, bystander: subprocess.Popen[bytes]
) -> None:
    stat = stat_of(bystander.pid)
    assert stat is not None
    with guarding(mark, log=tmp_path / "guard.log", folder=tmp_path / "temporary", grace_s=0.1) as guard:
        guard.watch(bystander.pid, stat.start - 1)
        assert guard.process.stdin is not None
        guard.process.stdin.close()
        assert soon(lambda: not guards(mark), 8)
    assert alive(bystander.pid)


def test_a_guard_is_no_child_of_its_owner(tmp_path: Path, mark: str) -> None:
    """Ray kills the direct children of a worker that has died; the guard must outlive it."""
    with guarding(mark, log=tmp_path / "guard.log", folder=tmp_path / "temporary"):
        (guard,) = guards(mark)
        stat = stat_of(guard)
        assert stat is not None
        assert stat.parent != os.getpid()


def test_an_engine_is_its_session_and_their_descendants(engine: subprocess.Popen[bytes]) -> None:
    members = owned(engine).members()
    assert len(members) == 3
    assert {stat.session for stat in members.values()} == {engine.pid}


def test_a_core_that_outlives_its_server_still_belongs_to_the_engine(engine: subprocess.Popen[bytes]) -> None:
    process = owned(engine)
    before = set(process.members())
    engine.kill()
    engine.wait()
    assert set(process.members()) == before - {engine.pid}


@pytest.mark.timeout(15)
def test_ending_an_engine_leaves_none_of_its_processes(engine: subprocess.Popen[bytes]) -> None:
    process = owned(engine)
    before = set(process.members())
    assert process.end(grace_s=0.2) == ()
    assert not any(alive(pid) for pid in before)


def test_ending_an_engine_that_is_gone_does_nothing(engine: subprocess.Popen[bytes]) -> None:
    process = owned(engine)
    os.killpg(engine.pid, signal.SIGKILL)
    engine.wait()
    assert process.end(grace_s=0.2) == ()


@pytest.mark.timeout(15)
def test_what_ignores_sigterm_is_killed_after_the_grace() -> None:
    popen = subprocess.Popen([sys.executable, "-c", TREE, "stubborn"], start_new_session=True, stdout=subprocess.PIPE)
    assert popen.stdout is not None
    popen.stdout.readline()
    process = owned(popen)
    began = time.monotonic()
    assert process.end(grace_s=0.5) == ()
    assert 0.5 <= time.monotonic() - began < 5
    assert popen.poll() == -signal.SIGKILL
    popen.stdout.close()


def test_the_mark_is_no_vllm_variable() -> None:
    """vLLM warns of every VLLM_ variable it doesn't know."""
    assert not MARK.startswith("VLLM_")
