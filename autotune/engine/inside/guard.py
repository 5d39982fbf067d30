"""Ends an engine whose owner has gone, whatever the owner died of (SIGKILL included).

Started by path with `python -I -S`, one per engine and before it, in a session of its own. Standard input is a pipe
whose other end only the owner holds. Lines on it: `watch PID START` (the engine, with its start time in clock ticks,
field 22 of /proc/PID/stat), `release` (the owner stopped the engine itself: exit). End of file, the owner's death or
the death of a process named in the arguments ends the engine: SIGTERM to its first process, then SIGKILL to all.

An engine's processes are: the first one, every process of its OS session (an EngineCore outlives a killed API server,
https://github.com/vllm-project/vllm/issues/55510), their descendants, and those that carry the engine's mark in their
environment (which also finds an engine whose `watch` line was never written). Nothing is ever found by its name.

Then it removes the temporary folder of the engine. Arguments: OWNER_PID MARK GRACE_S FOLDER [OTHER_PID...]. Needs
nothing but the standard library and /proc.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
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


def tracks_resources(pid: int) -> bool:
    """multiprocessing's own helper: once the others are gone it removes their shared memory, and ends."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"multiprocessing.resource_tracker" in file.read()
    except OSError:
        return False


def end_engine(watched: list[tuple[int, int]], mark: bytes, grace_s: float) -> bool:
    """True once no process of the engine is left."""
    first = [pair for pair in watched if stat_of(pair[0]) is not None]
    for pid, start in first or engine_processes(watched, mark).items():
        send(pid, start, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while engine_processes(watched, mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    killing_since = time.monotonic()
    while time.monotonic() < killing_since + 30:
        left = engine_processes(watched, mark)
        if not left:
            return True
        for pid, start in left.items():
            if time.monotonic() > killing_since + 1 or not tracks_resources(pid):
                send(pid, start, signal.SIGKILL)
        time.sleep(0.1)
    return False


def leave_the_family() -> None:
    """Becomes init's child: a raylet kills the direct children of a worker that has gone, and this one must outlive it
    (Ray 2.60, CoreWorker::KillChildProcs)."""
    if os.fork() > 0:
        os._exit(0)


def main() -> int:
    leave_the_family()
    owner, mark, grace_s, folder = int(sys.argv[1]), os.fsencode(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    others = [int(word) for word in sys.argv[5:]]
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
    shutil.rmtree(folder, ignore_errors=True)
    print("the engine is gone" if gone else f"still there after SIGKILL: {left}", flush=True)
    return 0 if gone else 1


if __name__ == "__main__":
    sys.exit(main())
