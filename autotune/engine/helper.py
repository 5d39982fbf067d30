"""A script that runs in vLLM's interpreter for as long as it is needed, and answers in lines of JSON."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


class HelperEnded(Exception):
    """It has died, closed its end, or is of no more use."""


@dataclass(slots=True, kw_only=True)
class Helper:
    """Leads an OS session of its own, so that Ctrl-C passes it by; the end of its standard input ends it.

    What it prints besides its answers goes to `log`. Not safe for several threads at once.
    """

    name: str
    process: subprocess.Popen[bytes]
    _unread: bytes = b""

    @classmethod
    def start(cls, script: Path, *, python: Path, log: Path, env: Mapping[str, str]) -> Helper:
        """Raises OSError where `python` can't be run or `log` can't be written."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [str(python), str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                env=dict(env),
            )
        return cls(name=script.stem, process=process)

    def send(self, request: Mapping[str, Any]) -> None:
        """Raises HelperEnded."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise HelperEnded(f"it is gone ({error})") from None

    def reply(self, timeout_s: float) -> dict[str, Any] | None:
        """The next answer; None when there was none in that time. Raises HelperEnded."""
        assert self.process.stdout is not None
        out = self.process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([out], [], [], left_s)[0]:
                return None
            data = os.read(out, 65536)
            if not data:
                raise HelperEnded(f"it ended with exit code {self._exit_code()}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError:
            raise HelperEnded("it answers in something else than JSON") from None
        return found

    def end(self, *, grace_s: float = 15.0) -> None:
        """Returns once it is gone: after `grace_s` it is killed, with what it has started in its session."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.close()
        except OSError:
            _log.debug("%s had closed its end", self.name)
        try:
            self.process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            # Not reaped yet, so the number still means it.
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()

    def kill(self) -> None:
        """At once, from any thread: whoever waits for an answer gets HelperEnded. `end` still has to follow."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _exit_code(self) -> int | None:
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            return None
