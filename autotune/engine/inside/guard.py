"""Ends an engine whose owner has gone, whatever the owner died of (SIGKILL included).

Started by path with `python -I -S`, one per engine and before it, in a session of its own. Standard input is a pipe
whose other end only the owner holds. Lines on it: `watch PID START` (the engine, with its start time in clock ticks,
field 22 of /proc/PID/stat), `release` (the owner stopped the engine itself: exit). End of file, the owner's death or
the death of a process named in the arguments ends the engine: SIGTERM to its first process, then SIGKILL to all.

An engine's processes are: the first one, every process of its OS session (an EngineCore outlives a killed API server,
https://github.com/vllm-project/vllm/issues/55510), their descendants, and those that carry the engine's mark in their
environment (which also finds an engine whose `watch` line was never written). Nothing is ever found by its name.

Arguments: OWNER_PID MARK GRACE_S [OTHER_PID...]. Needs nothing but the standard library and /proc.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time


def stat_of(pid: int) -> tuple[int, int, int, str] | None:
    """(parent, session, start time, state) of a process; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), int(fields[3]), int(fields[19]), fields[0].decode()


def carries(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read()
    except OSError:
        return False


def engine_processes(watched: list[tuple[int, int]], mark: bytes) -> dict[int, int]:
    """{pid: start time} of every living process of the engine, this one never among them."""
    alive = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = stat_of(int(name))
            if found is not None and found[3] not in "ZX":
                alive[int(name)] = found
    ours: set[int] = set()
    for pid, start in watched:
        now = alive.get(pid)
        if now is not None and now[2] != start:
            continue  # the number belongs to a stranger by now, and so would its session
        if now is not None:
            ours.add(pid)
        ours |= {other for other, found in alive.items() if found[1] == pid and found[2] >= start}
    ours |= {pid for pid in alive if carries(pid, mark)}
    while True:
        more = {pid for pid, found in alive.items() if found[0] in ours} - ours
        if not more:
            break
        ours |= more
    ours.discard(os.getpid())
    return {pid: alive[pid][2] for pid in ours}


def send(pid: int, start: int, number: int) -> None:
    found = stat_of(pid)
    if found is not None and found[2] == start:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end_engine(watched: list[tuple[int, int]], mark: bytes, grace_s: float) -> bool:
    """True once no process of the engine is left."""
    first = [pair for pair in watched if stat_of(pair[0]) is not None]
    for pid, start in first or engine_processes(watched, mark).items():
        send(pid, start, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while engine_processes(watched, mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        left = engine_processes(watched, mark)
        if not left:
            return True
        for pid, start in left.items():
            send(pid, start, signal.SIGKILL)
        time.sleep(0.1)
    return False


def main() -> int:
    owner, mark, grace_s = int(sys.argv[1]), os.fsencode(sys.argv[2]), float(sys.argv[3])
    others = [int(word) for word in sys.argv[4:]]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    reason: list[str] = []
    signal.signal(signal.SIGTERM, lambda *_: reason.append("told to end"))

    lives = {pid: stat_of(pid) for pid in (owner, *others)}
    watched: list[tuple[int, int]] = []
    unread = b""
    while not reason:
        for pid, first in lives.items():
            now = stat_of(pid)
            if now is None or first is None or now[2] != first[2] or now[3] in "ZX":
                reason.append(f"process {pid} is gone")
        if not select.select([0], [], [], 0.5)[0]:
            continue
        data = os.read(0, 65536)
        if not data:
            reason.append("its owner closed the pipe without a word")
            break
        unread += data
        *lines, unread = unread.split(b"\n")
        for line in lines:
            words = line.split()
            if words[:1] == [b"release"]:
                return 0
            if words[:1] == [b"watch"]:
                watched.append((int(words[1]), int(words[2])))

    print(f"ending the engine {[pid for pid, _ in watched]}: {reason[0]}", flush=True)
    gone = end_engine(watched, mark, grace_s)
    left = sorted(engine_processes(watched, mark))
    print("the engine is gone" if gone else f"still there after SIGKILL: {left}", flush=True)
    return 0 if gone else 1


if __name__ == "__main__":
    sys.exit(main())
