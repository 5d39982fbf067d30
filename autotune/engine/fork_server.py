"""The owner's side of the fork server (`inside/fork_server.py`): one per owner process, kept between engines."""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.engine.command import inherited_environment
from autotune.engine.process import EngineProcess

_log = logging.getLogger(__name__)
_SCRIPT = Path(__file__).parent / "inside" / "fork_server.py"


class ForkServerBroken(Exception):
    """It can't import this vLLM, or has died. Engines are spawned instead."""


@dataclass(slots=True, kw_only=True)
class ForkServer:
    """Starts with the first engine it is asked for; `close()` (or leaving the context) ends it.

    Not for GPUs: a forked process can't use its parent's CUDA context, and which imports make one changes.
    """

    vllm_python: Path
    log: Path
    env: Mapping[str, str]
    import_timeout_s: float = 300.0
    broken: str | None = None
    """Why it can't be used; None as far as is known."""
    import_s: float | None = None
    _process: subprocess.Popen[bytes] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _unread: bytes = b""

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self, cancelled: Callable[[], bool] = lambda: False) -> bool:
        """Imports vLLM unless that was done before (20 s or more). False = cancelled meanwhile; ask again later.

        Raises ForkServerBroken.
        """
        with self._lock:
            if self.broken is not None:
                raise ForkServerBroken(self.broken)
            if self._process is None:
                self.log.parent.mkdir(parents=True, exist_ok=True)
                with self.log.open("ab") as output:
                    self._process = subprocess.Popen(
                        [str(self.vllm_python), str(_SCRIPT)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=output,
                        start_new_session=True,
                        env=inherited_environment(self.env),
                    )
            if self.import_s is None:
                deadline = time.monotonic() + self.import_timeout_s
                while (reply := self._reply(0.5)) is None:
                    if cancelled():
                        return False
                    if time.monotonic() > deadline:
                        self._give_up(f"importing vLLM took more than {self.import_timeout_s:.0f} s")
                self.import_s = float(reply["ready"])
                _log.info("the fork server imported vLLM in %.1f s", self.import_s)
            return True

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> EngineProcess:
        """An engine with these api_server arguments and exactly this environment. Raises ForkServerBroken."""
        reply = self._ask({"do": "start", "argv": list(argv), "env": dict(env), "log": str(log)})
        if "error" in reply:
            with self._lock:
                self._give_up(f"a fork failed: {reply['error']}")
        pid = int(reply["pid"])
        return EngineProcess(pid=pid, start=int(reply["start"]), exit_code=lambda: self._exit_code(pid))

    def close(self) -> None:
        with self._lock:
            self._end()

    def _exit_code(self, pid: int) -> int | None:
        try:
            code = self._ask({"do": "exit_code", "pid": pid})["exit_code"]
        except ForkServerBroken:
            # Nobody can say what it ended with any more; whether it ended can still be seen.
            return None if Path(f"/proc/{pid}").exists() else 1
        return None if code is None else int(code)

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            if self.broken is not None or self._process is None:
                raise ForkServerBroken(self.broken or "it was closed")
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
            except OSError as error:
                self._give_up(f"it is gone ({error})")
            reply = self._reply(30.0)
            if reply is None:
                self._give_up("it does not answer")
            assert reply is not None
            return reply

    def _reply(self, timeout_s: float) -> dict[str, Any] | None:
        """The next answer; None when there was none in that time. Raises ForkServerBroken when it has ended."""
        assert self._process is not None and self._process.stdout is not None
        out = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([out], [], [], left_s)[0]:
                return None
            data = os.read(out, 65536)
            if not data:
                self._give_up(f"it ended with exit code {self._process.wait(10)}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _give_up(self, reason: str) -> None:
        self.broken = f"{reason}; see {self.log}"
        self._end()
        raise ForkServerBroken(self.broken)

    def _end(self) -> None:
        process, self._process, self.import_s, self._unread = self._process, None, None, b""
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.close()
        except OSError:
            _log.debug("the fork server had closed its end")
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
