"""The processes of one engine: found by OS session and descent, ended, and verified to be gone. Never found by name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_POLL_S = 0.05
_ORPHANS_S = 1.0
_TRACKER_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """What /proc/PID/stat says. `start` (clock ticks since boot) tells a process from a later one with its number."""

    parent: int
    session: int
    start: int
    cpu_s: float
    state: str

    @property
    def alive(self) -> bool:
        """A zombie has let go of everything but its number, and some containers never reap one."""
        return self.state not in ("Z", "X")


def stat_of(pid: int) -> Stat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Stat(
        parent=int(words[1]),
        session=int(words[3]),
        start=int(words[19]),
        cpu_s=(int(words[11]) + int(words[12])) / _TICKS_PER_S,
        state=words[0].decode(),
    )


def living() -> dict[int, Stat]:
    found = ((int(name), stat_of(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return {pid: stat for pid, stat in found if stat is not None and stat.alive}


@dataclass(slots=True, kw_only=True)
class EngineProcess:
    """An engine's first process, which leads an OS session of its own. `exit_code()` is None while it runs."""

    pid: int
    start: int
    exit_code: Callable[[], int | None]
    _known: dict[int, int] = field(default_factory=dict)

    def members(self) -> dict[int, Stat]:
        """Living processes of the engine: its session's, their descendants, and any seen before that still live.

        A session number can't be handed out again while the session has members; once all are gone and a stranger
        has it, the start time tells.
        """
        alive = living()
        leader = alive.get(self.pid)
        ours = {pid for pid, start in self._known.items() if pid in alive and alive[pid].start == start}
        if leader is None or leader.start == self.start:
            ours |= {pid for pid, stat in alive.items() if stat.session == self.pid and stat.start >= self.start}
            if leader is not None:
                ours.add(self.pid)
        while more := {pid for pid, stat in alive.items() if stat.parent in ours} - ours:
            ours |= more
        ours.discard(os.getpid())
        self._known.update({pid: alive[pid].start for pid in ours})
        return {pid: alive[pid] for pid in ours}

    def cpu_s(self) -> float:
        """CPU time its living processes have used: it grows while anything is being done."""
        return sum(stat.cpu_s for stat in self.members().values())

    def end(self, *, grace_s: float, kill_s: float = 20.0) -> tuple[int, ...]:
        """SIGTERM to the first process, SIGKILL to whatever is left after `grace_s`.

        Returns the pids that are still there after another `kill_s` (none, but for an uninterruptible wait).
        """
        members = self.members()
        if self.pid in members:
            self._send(self.pid, self.start, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while members and time.monotonic() < deadline:
            if self.pid not in members:
                # Nobody is left to tell an EngineCore to end (vllm#55510): it gets a moment to notice by itself.
                deadline = min(deadline, time.monotonic() + _ORPHANS_S)
            time.sleep(_POLL_S)
            self.exit_code()  # reaps it, where it is our child
            members = self.members()
        killing_since = time.monotonic()
        while members and time.monotonic() < killing_since + kill_s:
            for pid, stat in members.items():
                if time.monotonic() > killing_since + _TRACKER_S or not _tracks_resources(pid):
                    self._send(pid, stat.start, signal.SIGKILL)
            time.sleep(_POLL_S)
            self.exit_code()
            members = self.members()
        return tuple(sorted(members))

    @staticmethod
    def _send(pid: int, start: int, number: int) -> None:
        now = stat_of(pid)
        if now is not None and now.start == start:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _tracks_resources(pid: int) -> bool:
    """multiprocessing's own helper: once the others are gone it removes their shared memory, and ends."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"multiprocessing.resource_tracker" in file.read()
    except OSError:
        return False
