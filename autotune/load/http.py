"""Load over HTTP, sent by a client process of its own (`autotune.load.client`)."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import autotune
from autotune.load.job import LoadJob, read_block
from autotune.load.traffic import vocabulary_of
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import LoadBlock
from autotune.spec.workload import Rung, Workload

_READ_BYTES = 1 << 20


class LoadClientFailed(Exception):
    """The load client died or fell silent: the harness failed, the configuration isn't to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLoader:
    """Blocks come about once a second, whether or not a request ended; closing the iterator ends the client at once.

    The client works on while nobody asks for the next block. `vocabulary` None reads it from the model's config.json,
    where the model is a folder. Raises LoadClientFailed when the client dies or says nothing for `silence_limit_s`.
    """

    vocabulary: range | None = None
    drain_limit_s: float = 60.0
    request_timeout_s: float = 600.0
    silence_limit_s: float = 30.0

    def __call__(
        self, endpoint: Endpoint, workload: Workload, rung: Rung, *, seed: int
    ) -> Generator[LoadBlock, None, None]:
        job = LoadJob(
            url=endpoint.url,
            api_key=endpoint.api_key,
            model=endpoint.served_model,
            workload=workload,
            rung=rung,
            seed=seed,
            vocabulary=vocabulary_of(endpoint.config.model) if self.vocabulary is None else self.vocabulary,
            drain_limit_s=self.drain_limit_s,
            request_timeout_s=self.request_timeout_s,
        )
        with tempfile.TemporaryFile() as stderr:
            process = _start(stderr)
            try:
                assert process.stdin is not None and process.stdout is not None
                try:
                    process.stdin.write(job.to_line())
                    process.stdin.flush()
                except BrokenPipeError:
                    pass  # it died at once: no end line will follow either
                for line in _lines(process.stdout, silence_limit_s=self.silence_limit_s):
                    block = read_block(line)
                    if block is None:
                        return
                    yield block
                raise LoadClientFailed(f"the load client ended with {process.wait(5)}: {_tail(stderr)}")
            finally:
                _end(process)


def _start(stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    """In a session of its own, so that a Ctrl-C meant for the search doesn't cut the load before the search decides."""
    root = str(Path(autotune.__file__).parent.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "autotune.load.client"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        bufsize=0,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Killed rather than asked: the kernel closes its connections, and there is nothing it could still say."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _lines(stream: IO[bytes], *, silence_limit_s: float) -> Iterator[bytes]:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        begun = b""
        while True:
            if not selector.select(silence_limit_s):
                raise LoadClientFailed(f"the load client said nothing for {silence_limit_s:g} s")
            data = os.read(stream.fileno(), _READ_BYTES)
            if not data:
                return
            *lines, begun = (begun + data).split(b"\n")
            yield from lines


def _tail(stderr: IO[bytes]) -> str:
    """The end of a traceback, which names the failure; the job, and the key in it, never reaches stderr."""
    stderr.seek(0)
    lines = stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no error text"
