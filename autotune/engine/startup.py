"""How far an engine's start has come, read from its log as it grows, and when to call it hung."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autotune.engine.start_log import Stage, stage_of_line
from autotune.spec.verdict import EngineFailure

_KEPT_BYTES = 8 * 1024 * 1024
_CORE_DIED = (b"EngineDeadError", b"EngineCore encountered a fatal error", b"EngineCore encountered an issue")
_CPU_EVERY_S = 2.0
_CPU_PROGRESS_S = 0.05


@dataclass(slots=True, kw_only=True)
class Startup:
    """`stage` and the times of the last progress (monotonic seconds), as of the last `look`."""

    log: Path
    began_s: float
    stage: Stage = "imports"
    last_line_s: float = field(default_factory=time.monotonic)
    last_cpu_s: float = field(default_factory=time.monotonic)
    _read: int = 0
    _rest: bytes = b""
    _dead: bool = False
    _cpu_s: float = 0.0
    _cpu_looked_s: float = 0.0

    def look(self, cpu_s: Callable[[], float]) -> None:
        """Reads what the log has gained; asks for the CPU time used so far every other second."""
        now = time.monotonic()
        with self.log.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        if new:
            self._read += len(new)
            self.last_line_s = now
            # A progress bar ends its states with a carriage return.
            *lines, self._rest = (self._rest + new).replace(b"\r", b"\n").split(b"\n")
            for line in lines:
                self.stage = stage_of_line(line.decode("utf-8", "replace")) or self.stage
        if now - self._cpu_looked_s >= _CPU_EVERY_S:
            self._cpu_looked_s = now
            used_s = cpu_s()
            # A child that ended takes its share along, so a smaller sum is a change as well.
            if abs(used_s - self._cpu_s) > _CPU_PROGRESS_S:
                self._cpu_s, self.last_cpu_s = used_s, now

    def hang(self, *, silent_s: float, start_timeout_s: float) -> EngineFailure | None:
        """A start that nothing shows to go on. Collectives spin while they wait: CPU time alone excuses little."""
        now = time.monotonic()
        silent_for_s, idle_for_s = now - self.last_line_s, now - self.last_cpu_s
        if now - self.began_s > start_timeout_s:
            why = f"not healthy {now - self.began_s:.0f} s after its start"
        elif silent_for_s > silent_s and idle_for_s > silent_s:
            why = f"no new log line and no CPU time used for {min(silent_for_s, idle_for_s):.0f} s"
        elif silent_for_s > 4 * silent_s:
            why = f"no new log line for {silent_for_s:.0f} s"
        else:
            return None
        lines = [line for line in self.text().splitlines() if line.strip()]
        last = lines[-1].strip()[:500] if lines else "an empty log"
        return EngineFailure(stage=self.stage, cause="hang.startup", evidence=f"{why}, after: {last}")

    def core_died(self) -> bool:
        """Whether the log, since the last call, says so: an API server can outlive its engine core for a while."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._dead = self._dead or any(words in self._rest + new for words in _CORE_DIED)
        self._read += len(new)
        self._rest = new[-200:]
        return self._dead

    def text(self) -> str:
        """The log so far; of a very long one, the beginning and the end."""
        size = self.log.stat().st_size
        with self.log.open("rb") as file:
            if size <= _KEPT_BYTES:
                data = file.read()
            else:
                head = file.read(_KEPT_BYTES // 2)
                file.seek(size - _KEPT_BYTES // 2)
                data = head + b"\n[...]\n" + file.read()
        return data.decode("utf-8", "replace").replace("\r", "\n")
