"""Field cases about processes and ports, each with its input: tests/fixtures/cases."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from autotune.engine.failure import classify
from autotune.engine.port import held_port
from autotune.engine.process import EngineProcess, living, stat_of

CASES = Path(__file__).parents[1] / "fixtures" / "cases"

pytestmark = pytest.mark.timeout(20)


def alive(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat.alive


def members(popen: subprocess.Popen[bytes], count: int) -> tuple[EngineProcess, set[int]]:
    stat = stat_of(popen.pid)
    assert stat is not None
    process = EngineProcess(pid=popen.pid, start=stat.start, exit_code=popen.poll)
    deadline = time.monotonic() + 10
    while len(found := set(process.members())) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    return process, found


@pytest.fixture
def fake_engine() -> Iterator[subprocess.Popen[bytes]]:
    source = CASES / "PROC-01" / "fake_engine.py.txt"
    popen = subprocess.Popen([sys.executable, str(source)], start_new_session=True)
    yield popen
    with suppress(ProcessLookupError):
        os.killpg(popen.pid, signal.SIGKILL)
    popen.wait()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    popen = subprocess.Popen(["bash", str(CASES / "PROC-02" / "bystander.sh")])
    yield popen
    popen.kill()
    popen.wait()


def test_proc_01_a_core_that_outlives_its_killed_server_is_found_and_removed(
    fake_engine: subprocess.Popen[bytes],
) -> None:
    process, both = members(fake_engine, 2)
    assert len(both) == 2
    fake_engine.send_signal(signal.SIGKILL)
    fake_engine.wait()
    [core] = set(process.members())
    assert alive(core)
    assert process.end(grace_s=0.2) == ()
    assert not any(alive(pid) for pid in both)


def test_proc_02_a_strangers_vllm_serve_outlives_a_stop(
    fake_engine: subprocess.Popen[bytes], bystander: subprocess.Popen[bytes]
) -> None:
    process, _ = members(fake_engine, 2)
    assert process.end(grace_s=0.2) == ()
    assert bystander.pid in living()
    assert alive(os.getpid())


def test_proc_04_four_engines_that_start_together_never_get_one_port() -> None:
    def started(_: int) -> int:
        """Holds a port as long as an engine's start takes, and listens on it as vLLM does."""
        with held_port() as port, socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            time.sleep(0.005)
            server.bind(("127.0.0.1", port))
            server.listen()
            time.sleep(0.005)
            return port

    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            assert len(set(pool.map(started, range(4)))) == 4


def test_proc_04_a_port_that_was_taken_after_all_is_retried_and_blames_nobody() -> None:
    failure = classify((CASES / "PROC-04" / "race.log").read_text(), exit_code=1, stage="distributed", device_gib=80.0)
    assert failure.cause == "infra.port_race"
    assert not failure.blames_configuration
