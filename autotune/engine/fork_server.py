"""The owner's side of the fork server (`inside/fork_server.py`): one per owner process, kept between engines."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from autotune.engine.command import inherited_environment
from autotune.engine.helper import Helper, HelperEnded
from autotune.engine.process import EngineProcess

_log = logging.getLogger(__name__)
_SCRIPT = Path(__file__).parent / "inside" / "fork_server.py"


class ForkServerBroken(Exception):
    """It can't import this vLLM, or has died. Engines are spawned instead."""


@dataclass(slots=True, kw_only=True)
class ForkServer:
    """Starts with the first engine it is asked for; `close()` (or leaving the context) ends it.

    `env` has to show it the GPUs that its engines will get, or others of their kind: some modules of vLLM choose by the
    first GPU's capability when they are imported. It never uses them itself, and forks only while that holds.
    """

    vllm_python: Path
    log: Path
    env: Mapping[str, str]
    import_timeout_s: float = 300.0
    broken: str | None = None
    """Why it can't be used; None as far as is known."""
    import_s: float | None = None
    proven: bool = False
    """Whether an engine forked by it has served."""
    _helper: Helper | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

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
            if self._helper is None:
                environment = inherited_environment(self.env)
                environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as its engines have it
                self._helper = Helper.start(_SCRIPT, python=self.vllm_python, log=self.log, env=environment)
            if self.import_s is None:
                deadline = time.monotonic() + self.import_timeout_s
                while (reply := self._reply(0.5)) is None:
                    if cancelled():
                        return False
                    if time.monotonic() > deadline:
                        self._give_up(f"importing vLLM took more than {self.import_timeout_s:.0f} s")
                if "error" in reply:
                    self._give_up(str(reply["error"]))
                self.import_s = float(reply["ready"])
                _log.info("the fork server imported vLLM in %.1f s", self.import_s)
            return True

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> EngineProcess:
        """An engine with these api_server arguments and exactly this environment. Raises ForkServerBroken."""
        reply = self._ask({"do": "start", "argv": list(argv), "env": dict(env), "log": str(log)})
        if "error" in reply:
            with self._lock:
                self._give_up(f"it can't fork: {reply['error']}")
        pid = int(reply["pid"])
        return EngineProcess(pid=pid, start=int(reply["start"]), exit_code=lambda: self._exit_code(pid))

    def give_up(self, reason: str) -> None:
        """Ends it for good: `start` and `prepare` raise from now on. Its engines end with it."""
        with self._lock, suppress(ForkServerBroken):
            self._give_up(reason)

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
            if self.broken is not None or self._helper is None:
                raise ForkServerBroken(self.broken or "it was closed")
            try:
                self._helper.send(request)
            except HelperEnded as ended:
                self._give_up(str(ended))
            reply = self._reply(30.0)
            if reply is None:
                self._give_up("it does not answer")
            return reply

    def _reply(self, timeout_s: float) -> dict[str, Any] | None:
        """The next answer; None when there was none in that time. Raises ForkServerBroken when it has ended."""
        assert self._helper is not None
        try:
            return self._helper.reply(timeout_s)
        except HelperEnded as ended:
            self._give_up(str(ended))

    def _give_up(self, reason: str) -> NoReturn:
        self.broken = f"{reason}; see {self.log}"
        self._end()
        raise ForkServerBroken(self.broken)

    def _end(self) -> None:
        helper, self._helper, self.import_s = self._helper, None, None
        if helper is not None:
            helper.end()
