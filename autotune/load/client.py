"""Sends one rung of load to a vLLM server and streams back what it saw. Runs in a process of its own:

    python -m autotune.load.client < job        (one line of JSON, see autotune.load.job; the API key is in it)

Once it has said that it is ready it waits for a second line: when to begin. It writes a line per block to standard
output, about one a second, and lives as long as its standard input stays open: when its owner dies, so does it, and the
kernel closes its connections, which makes vLLM abort the requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import os
import queue
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

import aiohttp

from autotune.load.answer import Answer
from autotune.load.body import body_of, path_of
from autotune.load.job import END_LINE, READY_LINE, LoadJob, block_line
from autotune.load.traffic import PlannedRequest, plan
from autotune.spec.measurement import LoadBlock, RequestRecord
from autotune.spec.workload import ClosedLoop

_BLOCK_S = 1.0
_PAUSE_AFTER_FAILURE_S = 0.25
_MADE_AHEAD = 64
_TIME_TO_MAKE_S = 0.05
"""More than the body of a very long prompt takes, so that making one doesn't make another late."""

_KEEP_ALIVE_S = 3.0
"""Less than the 5 s after which vLLM closes an idle connection: a request sent into that would be lost."""

_NICE = -10
"""An engine on the same cores must not make the client late: then the client's own waiting would be measured."""


class LoadClient:
    """`emit` gets each block; it must not block."""

    def __init__(self, job: LoadJob, emit: Callable[[LoadBlock], None]) -> None:
        self.job, self.emit = job, emit
        planned = plan(job.workload, job.rung, seed=job.seed, vocabulary=job.vocabulary)
        self.planned = itertools.islice(planned, job.shard, None, job.shards)
        self.began = 0.0
        self.sent = self.in_flight = self.streamed = 0
        self.sending = True
        self.records: list[RequestRecord] = []
        self.enough_sent = asyncio.Event()
        self.bug: BaseException | None = None

    async def run(self) -> None:
        job = self.job
        async with aiohttp.ClientSession(
            base_url=job.url,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=job.request_timeout_s, sock_connect=job.request_timeout_s),
            headers={"Authorization": f"Bearer {job.api_key}", "Content-Type": "application/json"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        ) as self.session:
            self.began = time.perf_counter()
            blocks = asyncio.create_task(self._emit_blocks())
            requests: set[asyncio.Task[Any]] = set()
            if isinstance(job.rung.arrivals, ClosedLoop):
                for _ in range(job.rung.arrivals.concurrency):
                    self._watch(asyncio.create_task(self._worker()), requests)
                await self.enough_sent.wait()
            else:
                await self._send_on_schedule(requests)
            await asyncio.sleep(max(0.0, job.rung.duration_s - self._now_s()))
            self._cut()
            self.sending = False
            self._cut()
            await self._drain(requests)
            blocks.cancel()
        self._cut()

    def _now_s(self) -> float:
        return time.perf_counter() - self.began

    def _take(self) -> bool:
        """Whether one more may be sent; False once the rung has sent what it must and lasted as long as it must."""
        if self.sent >= self.job.rung.requests and self._now_s() >= self.job.rung.duration_s:
            self.enough_sent.set()
            return False
        self.sent += 1
        if self.sent >= self.job.rung.requests:
            self.enough_sent.set()
        return True

    def _next(self) -> PlannedRequest | None:
        return next(self.planned) if self._take() else None

    async def _worker(self) -> None:
        while (planned := self._next()) is not None:
            if not await self._converse(planned, scheduled_s=self._now_s(), body=self._body(planned)):
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)

    async def _send_on_schedule(self, requests: set[asyncio.Task[Any]]) -> None:
        """Never waits for an answer; a request that is late keeps the time it was due.

        While nothing is due, the next bodies are made: in a burst of long prompts that would make each wait for those
        before it.
        """
        rung = self.job.rung
        made: deque[tuple[PlannedRequest, bytes]] = deque()
        while True:
            planned, body = made.popleft() if made else self._make()
            due_s = planned.scheduled_s
            assert due_s is not None
            if self._over(due_s):
                return
            await asyncio.sleep(0)
            while (early_s := due_s - self._now_s()) > 0:
                wanted = len(made) < _MADE_AHEAD and (rung.duration_s > 0 or self.sent + len(made) + 1 < rung.requests)
                if wanted and early_s > _TIME_TO_MAKE_S:
                    made.append(self._make())
                    await asyncio.sleep(0)
                else:
                    await asyncio.sleep(early_s)  # uvloop's timers are whole milliseconds, rounded
            if self._over(due_s):  # later turns were sent meanwhile
                return
            self.sent += 1
            self._watch(asyncio.create_task(self._converse(planned, scheduled_s=due_s, body=body)), requests)

    def _over(self, due_s: float) -> bool:
        return self.sent >= self.job.rung.requests and due_s >= self.job.rung.duration_s

    def _make(self) -> tuple[PlannedRequest, bytes]:
        planned = next(self.planned)
        return planned, self._body(planned)

    def _watch(self, task: asyncio.Task[Any], tasks: set[asyncio.Task[Any]]) -> None:
        """Keeps the task alive while it runs; an exception in it is a bug here, and ends the rung."""

        def ended(task: asyncio.Task[Any]) -> None:
            tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                self.bug = self.bug or task.exception()
                self.enough_sent.set()

        tasks.add(task)
        task.add_done_callback(ended)

    async def _drain(self, requests: set[asyncio.Task[Any]]) -> None:
        if requests:
            _, left = await asyncio.wait(requests, timeout=self.job.drain_limit_s)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        if self.bug is not None:
            raise self.bug

    async def _emit_blocks(self) -> None:
        while True:
            await asyncio.sleep(_BLOCK_S)
            self._cut()

    def _cut(self) -> None:
        records, self.records = tuple(self.records), []
        self.emit(
            LoadBlock(
                elapsed_s=round(self._now_s(), 6),
                records=records,
                in_flight=self.in_flight,
                sending=self.sending,
                streamed_tokens=self.streamed,
            )
        )

    def _body(self, planned: PlannedRequest) -> bytes:
        return body_of(planned, model=self.job.model)

    async def _converse(self, planned: PlannedRequest, *, scheduled_s: float, body: bytes) -> bool:
        """One request and, while the rung sends, those that follow on it. Whether all were answered."""
        while True:
            answer = await self._request(planned, scheduled_s=scheduled_s, body=body)
            if answer is None or not planned.goes_on or not self.sending:
                return answer is not None
            said = answer.said(chat=planned.form.chat)
            following = planned.followed_by(said)
            assert following is not None
            scheduled_s = self._now_s() + planned.think_s
            await asyncio.sleep(planned.think_s)
            if not self.sending or not self._take():
                return True
            planned, body = following, self._body(following)

    async def _request(self, planned: PlannedRequest, *, scheduled_s: float, body: bytes) -> Answer | None:
        """None when it wasn't answered to the end. Adds one record whatever happens."""
        answer = Answer(chat=planned.form.chat, keep=planned.goes_on)
        error: str | None = None
        said: dict[str, Any] = {}
        done_s: float | None = None
        self.in_flight += 1
        sent_s = self._now_s()
        try:
            async with self.session.post(path_of(planned), data=body) as response:
                if response.status == 200 and not planned.form.streamed:
                    data = await response.read()
                    done_s = self._now_s()
                    answer.whole(data, int(done_s * 1e6))
                    self.streamed += 1
                elif response.status == 200:
                    read, feed, began = response.content.readany, answer.feed, self.began
                    while data := await read():
                        now_s = time.perf_counter() - began
                        self.streamed += feed(data, int(now_s * 1e6))
                        if answer.done and done_s is None:
                            done_s = now_s
                    if not answer.done:
                        error = "the server closed the stream before its end"
                else:
                    error = f"HTTP {response.status}: {_short(await response.text())}"
        except asyncio.CancelledError:
            error = f"drain timeout: no end within {self.job.drain_limit_s:g} s after the last request was sent"
        except TimeoutError:
            error = f"timeout: no end within {self.job.request_timeout_s:g} s"
        except (aiohttp.ClientError, OSError) as failure:
            error = f"{type(failure).__name__}: {_short(str(failure))}"
        counted = answer.count
        try:
            said = answer.close()
        except ValueError:
            error = error or "the last event isn't JSON"
        if error is None and "error" in said:
            error = _short(json.dumps(said["error"]))
        usage = said.get("usage") or {}
        output_tokens = usage.get("completion_tokens")
        self.streamed += (output_tokens if output_tokens is not None else answer.count) - counted
        self.in_flight -= 1
        self.records.append(
            RequestRecord(
                scheduled_s=round(scheduled_s, 6),
                sent_s=round(sent_s, 6),
                first_token_s=answer.first_us / 1e6 if answer.count else None,
                done_s=None if error or done_s is None else round(done_s, 6),
                prompt_tokens=usage.get("prompt_tokens"),
                output_tokens=output_tokens,
                cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
                error=error,
                token_gaps_us=_little_endian(answer.gaps_us),
                n=planned.n,
                asked_prompt_tokens=None if planned.is_text else planned.prompt_tokens,
                asked_output_tokens=planned.n * planned.output_tokens if planned.form.fixes_length else None,
                about_prompt_tokens=planned.prompt_tokens if planned.is_text else None,
                degenerate=answer.degenerate(said) if planned.form.chat and error is None else None,
            )
        )
        return answer if error is None else None


def _short(text: str) -> str:
    return " ".join(text.split())[:200]


def _little_endian(values: array[int]) -> bytes:
    assert values.itemsize == 4
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _exit_when_closed(stream_fd: int) -> None:
    """Standard input ends when the owner closes it or dies, however it dies."""
    while os.read(stream_fd, 4096):
        pass
    os._exit(1)


def _write_all(lines: queue.SimpleQueue[bytes | None]) -> None:
    """A slow reader must not hold up the load, so writing has a thread of its own."""
    while (line := lines.get()) is not None:
        try:
            while line:
                line = line[os.write(1, line) :]
        except OSError:
            os._exit(1)


def main() -> None:
    job = LoadJob.from_line(sys.stdin.buffer.readline())
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    writer = threading.Thread(target=_write_all, args=(lines,), daemon=True)
    writer.start()
    gc.freeze()
    lines.put(READY_LINE)
    begin_s = float(sys.stdin.buffer.readline() or os._exit(1))
    threading.Thread(target=_exit_when_closed, args=(0,), daemon=True).start()
    with contextlib.suppress(OSError):  # allowed to root, as in most containers
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    try:
        import uvloop as loops
    except ImportError:  # a little slower, nothing else
        import asyncio as loops  # type: ignore[no-redef]

    async def rung() -> None:
        await asyncio.sleep(begin_s - time.perf_counter())
        await LoadClient(job, lambda block: lines.put(block_line(block))).run()

    loops.run(rung())
    lines.put(END_LINE)
    lines.put(None)
    writer.join()


if __name__ == "__main__":
    main()
