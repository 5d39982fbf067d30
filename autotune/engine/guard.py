"""The owner's side of an engine's guard (`inside/guard.py`): a pipe that closes when the owner dies, of whatever."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger(__name__)
_SCRIPT = Path(__file__).parent / "inside" / "guard.py"
MARK = "VTUNE_ENGINE_MARK"
"""Environment variable by which the guard knows an engine whose start was never reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    process: subprocess.Popen[bytes]

    def watch(self, pid: int, start: int) -> None:
        """From now on this process, its OS session and its descendants end when the owner does."""
        self._say(f"watch {pid} {start}\n")

    def release(self) -> None:
        """The engine is gone: nothing is left to guard."""
        self._say("release\n")
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()
        except (OSError, ValueError):  # ValueError: closed already
            _log.warning("the guard process %d is gone: this engine would outlive a killed vtune", self.process.pid)


@contextmanager
def guarding(mark: str, *, log: Path, folder: Path, also: Sequence[int] = (), grace_s: float = 3.0) -> Iterator[Guard]:
    """A guard for one engine, started before it. `also`: further processes whose death ends the engine.

    `folder`: the engine's own temporary files, removed by the guard where the owner no longer can.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                str(_SCRIPT),
                str(os.getpid()),
                f"{MARK}={mark}",
                str(grace_s),
                str(folder),
                *map(str, also),
            ],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env={"LC_ALL": "C.UTF-8"},
        )
    process.wait(timeout=30)  # only the first of two: the guard itself is nobody's child
    process.wait(timeout=30)  # the guard is its child by now, no longer ours (see leave_the_family there)
    guard = Guard(process=process)
    try:
        yield guard
    finally:
        guard.release()
