"""Load over HTTP, sent by client processes of its own (`autotune.load.client`)."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import autotune
from autotune.load.clients import clients_for, shares
from autotune.load.job import READY_LINE, LoadJob, read_block
from autotune.load.traffic import vocabulary_of
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import LoadBlock, RequestRecord
from autotune.spec.workload import ClosedLoop, Rung, Workload

_READ_BYTES = 1 << 20
_LEAD_S = 0.02
"""From the word to begin until all clients begin: it must reach them before."""


class LoadClientFailed(Exception):
    """The load client died or fell silent: the harness failed, the configuration isn't to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLoader:
    """Blocks come about once a second, whether or not a request ended; closing the iterator ends the clients at once.

    `clients` None starts as many as the rung's expected rate needs. Several begin at the same moment, share the plan
    between them (a closed loop's concurrency, an open loop's requests by their number) and their blocks are merged;
    nothing else differs. They work on while nobody asks for the next block. `vocabulary` None reads it from the model's
    config.json, where the model is a folder. Raises LoadClientFailed when a client dies or says nothing for
    `silence_limit_s`, ValueError for more clients than there is load to share.
    """

    vocabulary: range | None = None
    drain_limit_s: float = 60.0
    request_timeout_s: float = 600.0
    silence_limit_s: float = 30.0
    clients: int | None = None

    def __call__(
        self, endpoint: Endpoint, workload: Workload, rung: Rung, *, seed: int
    ) -> Generator[LoadBlock, None, None]:
        cores = len(os.sched_getaffinity(0))
        clients = clients_for(workload, rung, seed=seed, cores=cores) if self.clients is None else self.clients
        job = LoadJob(
            url=endpoint.url,
            api_key=endpoint.api_key,
            model=endpoint.served_model,
            workload=workload,
            rung=rung,
            seed=seed,
            vocabulary=vocabulary_of(endpoint.config.model) if self.vocabulary is None else self.vocabulary,
            drain_limit_s=self.drain_limit_s if rung.drain_limit_s is None else rung.drain_limit_s,
            request_timeout_s=self.request_timeout_s,
            shards=clients,
        )
        with ExitStack() as stack:
            started = [
                _Client.start(replace(job, rung=share, shard=shard), stack)
                for shard, share in enumerate(shares(rung, clients))
            ]
            for client in started:
                client.wait_until_ready(self.silence_limit_s)
            begin_s = time.perf_counter() + _LEAD_S
            for client in started:
                client.begin(begin_s)
            yield from _merged(started, rung, silence_limit_s=self.silence_limit_s)


@dataclass(slots=True, kw_only=True)
class _Client:
    """One client process. `latest` is its last block; `working_ns` what its event loop's thread had worked by then."""

    process: subprocess.Popen[bytes]
    stderr: IO[bytes]
    begun: bytes = b""
    ended: bool = False
    latest: LoadBlock = field(default_factory=lambda: LoadBlock(elapsed_s=0.0, records=()))
    heard_s: float = field(default_factory=time.monotonic)
    working_ns: int | None = None

    @classmethod
    def start(cls, job: LoadJob, stack: ExitStack) -> _Client:
        """In a session of its own, so that a Ctrl-C meant for the search doesn't cut the load before it decides."""
        root = str(Path(autotune.__file__).parent.parent)
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        stderr = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 (the stack closes it)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "autotune.load.client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            bufsize=0,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
        client = cls(process=process, stderr=stderr)
        stack.callback(client.end)
        client._tell(job.to_line())
        return client

    @property
    def stdout(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def wait_until_ready(self, limit_s: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.stdout, selectors.EVENT_READ)
            if not selector.select(limit_s):
                raise LoadClientFailed(f"the load client wasn't ready within {limit_s:g} s")
        if self.stdout.read(len(READY_LINE)) != READY_LINE:
            raise self.died()

    def begin(self, at_s: float) -> None:
        self._tell(b"%.9f\n" % at_s)
        self.heard_s = time.monotonic()
        self.working_ns = _working_ns(self.process.pid)

    def read(self) -> Iterator[LoadBlock]:
        """What it has said; `latest` goes along. Raises LoadClientFailed when it stopped without its end line."""
        data = os.read(self.stdout.fileno(), _READ_BYTES)
        if not data:
            raise self.died()
        self.heard_s = time.monotonic()
        *lines, self.begun = (self.begun + data).split(b"\n")
        for line in lines:
            block = read_block(line)
            if block is None:
                self.ended = True
                return
            block = replace(block, client_busy=self._busy_since_last(block))
            self.latest = block
            yield block

    def died(self) -> LoadClientFailed:
        return LoadClientFailed(f"the load client ended with {self.process.wait(5)}: {_tail(self.stderr)}")

    def end(self) -> None:
        """Killed rather than asked: the kernel closes its connections, and there is nothing it could still say."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def _busy_since_last(self, block: LoadBlock) -> float | None:
        """None for blocks so close to each other that the reading, made a moment later, says nothing about them."""
        passed_s = block.elapsed_s - self.latest.elapsed_s
        now_ns = _working_ns(self.process.pid)
        if now_ns is None or self.working_ns is None or passed_s < 0.5:
            return None
        before_ns, self.working_ns = self.working_ns, now_ns
        return min(1.0, (now_ns - before_ns) / 1e9 / passed_s)

    def _tell(self, line: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died at once: no end line will follow either


@dataclass(slots=True, kw_only=True)
class _Merge:
    """What the clients have said since the last merged block."""

    clients: Sequence[_Client]
    records: list[RequestRecord] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    heard: set[int] = field(default_factory=set)
    elapsed_s: float = 0.0
    sending: bool = True

    def add(self, number: int, said: LoadBlock) -> None:
        self.records += said.records
        self.busy += [] if said.client_busy is None else [said.client_busy]
        self.heard.add(number)

    def cut(self) -> LoadBlock:
        merged = LoadBlock(
            elapsed_s=self.elapsed_s,
            records=tuple(self.records),
            in_flight=sum(client.latest.in_flight for client in self.clients),
            sending=self.sending,
            streamed_tokens=sum(client.latest.streamed_tokens or 0 for client in self.clients),
            client_busy=max(self.busy, default=None),
        )
        self.records, self.busy, self.heard = [], [], set()
        return merged


def _merged(clients: Sequence[_Client], rung: Rung, *, silence_limit_s: float) -> Iterator[LoadBlock]:
    """A block whenever every client that isn't done has said something since the last one.

    An open loop sends until the last client has sent its last request. A closed loop does so until the first has: from
    then on there are fewer requests in flight than the rung says.
    """
    still_sending = all if isinstance(rung.arrivals, ClosedLoop) else any
    merge = _Merge(clients=clients)
    for number, said in _blocks(clients, silence_limit_s=silence_limit_s):
        merge.elapsed_s = max(merge.elapsed_s, said.elapsed_s)
        if merge.sending and not still_sending(client.latest.sending for client in clients):
            if merge.heard:
                yield merge.cut()
            merge.sending = False
            merge.add(number, said)
            yield merge.cut()
            continue
        merge.add(number, said)
        if merge.heard >= {other for other, client in enumerate(clients) if not client.ended}:
            yield merge.cut()
    if merge.heard:
        yield merge.cut()


def _blocks(clients: Sequence[_Client], *, silence_limit_s: float) -> Iterator[tuple[int, LoadBlock]]:
    """Each client's blocks as they come, with its number, until all have ended."""
    with selectors.DefaultSelector() as selector:
        for number, client in enumerate(clients):
            selector.register(client.stdout, selectors.EVENT_READ, number)
        while selector.get_map():
            for key, _ in selector.select(1.0):
                client = clients[key.data]
                for block in client.read():
                    yield key.data, block
                if client.ended:
                    selector.unregister(client.stdout)
            now_s = time.monotonic()
            if any(not client.ended and now_s - client.heard_s > silence_limit_s for client in clients):
                raise LoadClientFailed(f"the load client said nothing for {silence_limit_s:g} s")


def _working_ns(pid: int) -> int | None:
    """How long a process's first thread, which runs its event loop, has been running or waiting for a CPU.

    Waiting counts: a client that doesn't get a CPU is as late as one that has no time left.
    """
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            running_ns, waiting_ns, _ = file.read().split()
        return int(running_ns) + int(waiting_ns)
    except (OSError, ValueError):
        return None


def _tail(stderr: IO[bytes]) -> str:
    """The end of a traceback, which names the failure; the job, and the key in it, never reaches stderr."""
    stderr.seek(0)
    lines = stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no error text"
