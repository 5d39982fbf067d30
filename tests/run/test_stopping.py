"""A search on real engines that is killed or interrupted: nothing survives it, nothing is lost, nothing is repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from autotune.engine.guard import MARK
from autotune.history.reading import read_trials
from autotune.history.rundir import RunDir

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(400)]

TRIALS = 5
TEST = "VTUNE_TEST_RUN"
"""Set for the search, inherited by all that it starts: Ray, engines, guards, load clients."""
RAY_AGENTS_GIVE_UP_S = 100
"""Ray's two agents of a node notice a dead raylet, then try for 60 s to tell a GCS that has died with it (Ray 2.60)."""


class Search:
    """`vtune search` as a user starts it."""

    def __init__(self, out: Path, *arguments: str) -> None:
        self.out = out
        self.log = out.with_suffix(".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "autotune.cli.main", "search", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, TEST: str(out)},
            )

    def until(self, reached: Callable[[], bool], *, limit_s: float = 200) -> None:
        end = time.monotonic() + limit_s
        while not reached():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.1)

    def ended(self) -> list[int]:
        """Numbers of the trials that ended, as a reader sees them while the search runs."""
        return [record.trial for record in read_trials(RunDir(self.out))] if (self.out / "run.json").exists() else []

    def wait(self, limit_s: float) -> int:
        return self.process.wait(timeout=limit_s)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Search]]:
    searches: list[Search] = []

    def start(*arguments: str) -> Search:
        searches.append(Search(tmp_path / "run", *arguments))
        return searches[-1]

    yield start
    for search in searches:
        if search.process.poll() is None:
            search.process.kill()
            search.process.wait()


def processes(out: Path, *, engines: bool) -> list[str]:
    """What the search in `out` started and still runs; with `engines`, only what belongs to an engine."""
    found = []
    for process in psutil.process_iter():
        try:
            env = process.environ()
            if env.get(TEST) == str(out) and (MARK in env or not engines):
                found.append(f"{process.pid} {' '.join(process.cmdline()[:4])}")
        except (psutil.Error, OSError):
            continue
    return found


def gone_within(seconds: float, out: Path, *, engines: bool) -> bool:
    end = time.monotonic() + seconds
    while processes(out, engines=engines):
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def test_no_engine_survives_a_killed_driver_and_a_resumed_search_repeats_nothing(
    started: Callable[..., Search], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    search = started("--space", "tiny-cpu", "--trials", str(TRIALS), "--no-confirm", "--out", str(run))
    search.until(lambda: len(search.ended()) >= 2 and bool(processes(run, engines=True)))
    search.process.send_signal(signal.SIGKILL)
    search.wait(10)
    assert gone_within(10, run, engines=True), processes(run, engines=True)
    assert gone_within(RAY_AGENTS_GIVE_UP_S, run, engines=False), processes(run, engines=False)

    before = {(record.trial, record.attempt) for record in read_trials(RunDir(run))}
    resumed = started("--resume", str(run))
    assert resumed.wait(300) == 0, resumed.log.read_text()
    records = read_trials(RunDir(run))
    assert {(record.trial, record.attempt) for record in records} >= before
    assert Counter(record.trial for record in records) == Counter(range(TRIALS))  # each once: nothing repeated
    assert RunDir(run).header().state == "done"
    assert not processes(run, engines=False)


def test_ctrl_c_once_ends_cleanly_and_twice_at_once(started: Callable[..., Search], tmp_path: Path) -> None:
    run = tmp_path / "run"
    search = started("--space", "tiny-cpu", "--trials", str(TRIALS), "--no-confirm", "--out", str(run))
    search.until(lambda: len(search.ended()) >= 1 and bool(processes(run, engines=True)))
    search.process.send_signal(signal.SIGINT)
    assert search.wait(60) == 130, search.log.read_text()
    assert not processes(run, engines=False)
    header = RunDir(run).header()
    assert header.state == "interrupted"
    assert "Front" in search.log.read_text()  # it reported what it had

    resumed = started("--resume", str(run))
    resumed.until(lambda: bool(processes(run, engines=True)))
    resumed.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    resumed.process.send_signal(signal.SIGINT)
    assert resumed.wait(30) == 130, resumed.log.read_text()
    assert gone_within(10, run, engines=False), processes(run, engines=False)
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"
    assert os.path.getsize(run / "study.journal") > 0
