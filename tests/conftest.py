"""Holds for the whole suite: when it ends, nothing that it started is still running."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# Inherited by everything the tests start, however often it forks, daemonizes or changes its OS session.
MARK = "VTUNE_TEST_SESSION"
GRACE_S = 15.0
"""Ray's daemons and a stopped engine's tree may take this long to go after the last test."""


def pytest_configure() -> None:
    os.environ[MARK] = uuid.uuid4().hex


def pytest_collection_finish() -> None:
    """In a fresh checkout the first property pays seconds for Hypothesis' own modules and its tables of characters.

    Paid here, outside of any test's time limit.
    """
    draw_a_text()


@settings(max_examples=5, database=None, deadline=None)
@given(st.text(), st.from_regex("[a-z]+"), st.data())
def draw_a_text(text: str, word: str, data: st.DataObject) -> None:
    data.draw(st.dictionaries(st.just(text), st.floats() | st.just(word)))


def started_here(mark: str) -> Iterator[psutil.Process]:
    """Living processes that descend from this one or carry the session's mark in their environment."""
    descendants = {child.pid for child in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (
                process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
                and (process.pid in descendants or process.environ().get(MARK) == mark)
                # multiprocessing's bookkeeping child lives exactly as long as this interpreter.
                and not any("multiprocessing.resource_tracker" in word for word in process.cmdline())
            ):
                yield process


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the session if an engine, a Ray daemon or any other child outlives it; then ends what it found."""
    mark = os.environ[MARK]
    deadline = time.monotonic() + GRACE_S
    while (left := list(started_here(mark))) and time.monotonic() < deadline:
        time.sleep(0.2)
    if not left:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for process in left:
        with contextlib.suppress(psutil.Error):
            if reporter is not None:
                command = " ".join(process.cmdline())[:200]
                reporter.write_line(f"\nLEFT RUNNING by the tests: {process.pid} {command}", red=True)
            process.kill()
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
