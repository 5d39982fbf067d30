"""The client process against a local server that misbehaves on demand, as no real vLLM can be made to."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from aiohttp import web

from autotune.load.answer import Answer
from autotune.load.http import HttpLoader, LoadClientFailed
from autotune.load.job import LoadJob
from autotune.load.traffic import SAFE_VOCABULARY
from autotune.spec.config import EngineConfig
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import EngineSample, LoadBlock, RequestRecord, StartFacts
from autotune.spec.workload import (
    ClosedLoop,
    FixedLength,
    LogNormalLength,
    Poisson,
    RequestShape,
    Rung,
    SharedPrefix,
    UniformLength,
    Workload,
)

pytestmark = pytest.mark.timeout(20)

WORKLOAD = Workload(
    name="w",
    shapes=(RequestShape(prompt=FixedLength(tokens=6), output=FixedLength(tokens=4)),),
    rungs=(),
    reference_rungs=(),
)
MICROSECOND_S = 1e-6
"""What times are rounded to."""
CLOSED = Rung(name="r", arrivals=ClosedLoop(concurrency=4), requests=12)


class Server:
    """Speaks the completions protocol; `behaviour` says how it answers. Runs in a thread of its own."""

    def __init__(self) -> None:
        self.behaviour = "stream"
        self.delay_s = 0.0
        self.bodies: list[dict[str, object]] = []
        self.keys: set[str | None] = set()
        self.open = 0
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        app = web.Application()
        app.router.add_post("/v1/completions", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.keys.add(request.headers.get("Authorization"))
        self.open += 1
        try:
            return await self._stream(request, body)
        finally:
            self.open -= 1

    async def _stream(self, request: web.Request, body: dict[str, int]) -> web.StreamResponse:
        if self.behaviour == "refuse" or (self.behaviour == "refuse some" and len(self.bodies) % 3 == 0):
            return web.json_response({"error": {"message": "engine\nis dead"}}, status=500)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        token = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
        if self.behaviour == "hang":
            await response.write(token)
            await asyncio.sleep(60)
        for count in range(body["max_tokens"]):
            await asyncio.sleep(self.delay_s)
            if self.behaviour == "disconnect" and count == 2:
                assert request.transport is not None
                request.transport.abort()
                return response
            if self.behaviour == "torn events":
                await response.write(token[:9])
                await asyncio.sleep(0.005)
                await response.write(token[9:])
            else:
                await response.write(token)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}  # type: ignore[arg-type]
        details = {"prompt_tokens_details": {"cached_tokens": 2}}
        match self.behaviour:
            case "no usage":
                pass
            case "error event":
                await response.write(b'data: {"error":{"message":"out of blocks"}}\n\n')
            case "early end":
                return response
            case _:
                await response.write(
                    b"data: " + json.dumps({"choices": [], "usage": usage | details}).encode() + b"\n\n"
                )
        await response.write(b"data: [DONE]\n\n")
        return response


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def endpoint(url: str) -> Endpoint:
    return Endpoint(
        url=url,
        api_key="secret-key",
        served_model="served",
        config=EngineConfig(model="m"),
        devices=("cpu",),
        argv=(),
        start_s=0.0,
        facts=StartFacts(),
        scrape=lambda: EngineSample(at_s=0.0),
        failure=lambda: None,
    )


def load(
    server: Server, rung: Rung = CLOSED, loader: HttpLoader | None = None, workload: Workload = WORKLOAD
) -> list[LoadBlock]:
    return list((loader or HttpLoader())(endpoint(server.url), workload, rung, seed=3))


def records_of(blocks: list[LoadBlock]) -> list[RequestRecord]:
    return [record for block in blocks for record in block.records]


def gaps_ms(record: RequestRecord) -> list[float]:
    return [gap_us / 1e3 for gap_us in np.frombuffer(record.token_gaps_us, "<u4").tolist()]


def test_every_request_is_recorded_with_the_servers_counts(server: Server) -> None:
    records = records_of(load(server))
    counted = [(r.prompt_tokens, r.output_tokens, r.cached_tokens, r.error, len(gaps_ms(r))) for r in records]
    assert counted == [(6, 4, 2, None, 3)] * 12


def test_requests_carry_token_ids_and_fixed_lengths(server: Server) -> None:
    load(server)
    body = server.bodies[0]
    prompt = body.pop("prompt")
    assert isinstance(prompt, list) and all(token in SAFE_VOCABULARY for token in prompt)
    assert body == {
        "model": "served",
        "max_tokens": 4,
        "n": 1,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_key_goes_with_every_request(server: Server) -> None:
    load(server)
    assert server.keys == {"Bearer secret-key"}


def test_times_are_in_order_and_gaps_are_those_of_the_stream(server: Server) -> None:
    """A client that gets no CPU for a while reads several events at once: gaps of 0, the end at the time of the first
    token. What it saw must add up all the same; that a gap is the time between two reads is shown below."""
    server.delay_s = 0.01
    for record in records_of(load(server)):
        assert record.first_token_s is not None and record.done_s is not None
        assert record.scheduled_s <= record.sent_s < record.first_token_s <= record.done_s + MICROSECOND_S
        assert len(gaps_ms(record)) == 3
        assert record.first_token_s + sum(gaps_ms(record)) / 1e3 <= record.done_s + MICROSECOND_S


def test_gaps_are_the_times_between_the_reads_that_brought_tokens() -> None:
    token = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
    answer = Answer()
    for data, at_us in ((token, 1000), (token[:9], 1500), (token[9:], 31_000), (token * 2, 91_000)):
        answer.feed(data, at_us)
    assert (answer.first_us, list(answer.gaps_us)) == (1000, [30_000, 60_000, 0])
    answer.feed(b'data: {"choices":[],"usage":{}}\n\ndata: [DONE]\n\n', 99_000)
    answer.close()
    assert (list(answer.gaps_us), answer.last_us, answer.done) == ([30_000, 60_000, 0], 91_000, True)


def test_a_closed_loop_keeps_no_more_than_its_concurrency_open(server: Server) -> None:
    server.delay_s = 0.01
    records = records_of(load(server))
    edges = sorted([(r.sent_s, 1) for r in records] + [(r.done_s or 0.0, -1) for r in records])
    open_now = np.cumsum([step for _, step in edges])
    assert max(open_now) == 4


def test_events_torn_between_packets_are_counted_once(server: Server) -> None:
    server.behaviour = "torn events"
    blocks = load(server)
    assert {len(gaps_ms(r)) for r in records_of(blocks)} == {3}
    assert blocks[-1].streamed_tokens == 12 * 4


def test_refused_requests_are_records_with_status_and_reason(server: Server) -> None:
    server.behaviour = "refuse"
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=4), requests=4)
    errors = {record.error for record in records_of(load(server, rung))}
    assert errors == {'HTTP 500: {"error": {"message": "engine\\nis dead"}}'}


def test_some_refusals_leave_the_other_requests_alone(server: Server) -> None:
    server.behaviour = "refuse some"
    records = records_of(load(server))
    assert [sum(r.error is None for r in records), len(records)] == [8, 12]


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("disconnect", "Client"),
        ("error event", "out of blocks"),
        ("early end", "closed the stream before its end"),
    ],
)
def test_a_broken_answer_is_a_record_with_its_error(server: Server, behaviour: str, words: str) -> None:
    server.behaviour = behaviour
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=2), requests=2)
    records = records_of(load(server, rung))
    assert len(records) == 2
    assert all(r.error is not None and words in r.error and r.done_s is None for r in records)


def test_a_server_that_counts_nothing_leaves_the_counts_unknown(server: Server) -> None:
    server.behaviour = "no usage"
    record = records_of(load(server))[0]
    assert (record.prompt_tokens, record.output_tokens, record.error, len(gaps_ms(record))) == (None, None, None, 3)


def test_a_rungs_own_drain_limit_goes_before_the_loaders(server: Server) -> None:
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=1), requests=1, drain_limit_s=0.3)
    server.behaviour = "hang"
    (record,) = records_of(load(server, rung, HttpLoader(drain_limit_s=500.0)))
    assert record.error == "drain timeout: no end within 0.3 s after the last request was sent"


def test_requests_that_never_end_are_counted_when_the_drain_limit_passes(server: Server) -> None:
    server.behaviour = "hang"
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=3), requests=3)
    blocks = load(server, rung, HttpLoader(drain_limit_s=0.5))
    errors = [record.error for record in records_of(blocks)]
    assert errors == ["drain timeout: no end within 0.5 s after the last request was sent"] * 3
    assert blocks[-1].in_flight == 0


def test_a_request_that_takes_too_long_is_a_timeout(server: Server) -> None:
    server.behaviour = "hang"
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=1), requests=1)
    [record] = records_of(load(server, rung, HttpLoader(request_timeout_s=0.3)))
    assert record.error == "timeout: no end within 0.3 s"


def test_a_server_that_is_gone_is_an_error_per_request(server: Server) -> None:
    gone = endpoint("http://127.0.0.1:9")
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=2), requests=2)
    errors = [record.error or "" for block in HttpLoader()(gone, WORKLOAD, rung, seed=1) for record in block.records]
    assert len(errors) == 2 and all("ClientConnectorError" in error for error in errors)


def test_blocks_come_every_second_though_no_request_ends(server: Server) -> None:
    server.behaviour = "hang"
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=1), requests=1, duration_s=60)
    blocks = HttpLoader()(endpoint(server.url), WORKLOAD, rung, seed=1)
    first, second = next(blocks), next(blocks)
    blocks.close()
    assert (first.records, second.records) == ((), ())
    assert second.elapsed_s - first.elapsed_s == pytest.approx(1, abs=0.5)
    assert (second.in_flight, second.streamed_tokens) == (1, 1)


def test_the_end_of_sending_is_marked_by_two_blocks_of_that_moment(server: Server) -> None:
    server.delay_s = 0.1
    blocks = load(server)
    until = next(i for i, block in enumerate(blocks) if not block.sending)
    assert blocks[until - 1].sending and blocks[until].elapsed_s - blocks[until - 1].elapsed_s < 0.05
    assert blocks[until].elapsed_s == pytest.approx(max(r.sent_s for r in records_of(blocks)), abs=0.05)


def test_a_rung_lasts_for_its_duration_though_its_requests_were_sent(server: Server) -> None:
    server.delay_s = 0.05
    blocks = load(server, Rung(name="r", arrivals=ClosedLoop(concurrency=1), requests=1, duration_s=0.8))
    assert len(records_of(blocks)) > 2
    assert next(b.elapsed_s for b in blocks if not b.sending) == pytest.approx(0.8, abs=0.2)


def test_an_open_loop_sends_on_schedule_whatever_the_server_does(server: Server) -> None:
    server.behaviour = "hang"
    rung = Rung(name="r", arrivals=Poisson(rate_rps=50), requests=40)
    records = records_of(load(server, rung, HttpLoader(drain_limit_s=0.3)))
    assert len(records) == 40
    assert max(r.sent_s - r.scheduled_s for r in records) < 0.25
    assert min(r.sent_s - r.scheduled_s for r in records) >= 0
    assert max(r.scheduled_s for r in records) == pytest.approx(40 / 50, rel=0.6)


def test_an_open_loop_starts_again_at_once_after_waiting_for_nothing(server: Server) -> None:
    rung = Rung(name="r", arrivals=Poisson(rate_rps=1000), requests=30, duration_s=0.5)
    records = records_of(load(server, rung))
    assert len(records) == pytest.approx(500, rel=0.25)


def test_several_sequences_are_sampled_not_greedy(server: Server) -> None:
    shape = RequestShape(prompt=FixedLength(tokens=6), output=FixedLength(tokens=4), n=2)
    workload = Workload(name="w", shapes=(shape,), rungs=(), reference_rungs=())
    [record] = records_of(
        load(server, Rung(name="r", arrivals=ClosedLoop(concurrency=1), requests=1), workload=workload)
    )
    assert [(body["n"], body["temperature"]) for body in server.bodies] == [(2, 1)]
    assert (record.n, record.asked_output_tokens) == (2, 8)


def client_of(loader_pid: int) -> psutil.Process:
    [client] = [p for p in psutil.Process(loader_pid).children() if "autotune.load.client" in p.cmdline()]
    return client


def test_closing_the_iterator_ends_the_client_and_its_requests(server: Server) -> None:
    server.behaviour = "hang"
    blocks = HttpLoader()(endpoint(server.url), WORKLOAD, CLOSED, seed=1)
    next(blocks)
    client = client_of(os.getpid())
    assert server.open == 4
    began_s = time.monotonic()
    blocks.close()
    while server.open:
        time.sleep(0.01)
    assert time.monotonic() - began_s < 2
    assert not client.is_running()


def test_a_client_that_is_killed_is_the_harnesss_failure(server: Server) -> None:
    server.behaviour = "hang"
    blocks = HttpLoader()(endpoint(server.url), WORKLOAD, CLOSED, seed=1)
    next(blocks)
    client_of(os.getpid()).kill()
    with pytest.raises(LoadClientFailed, match="ended with -9"):
        list(blocks)


def test_a_client_that_cannot_work_says_why(server: Server) -> None:
    nothing_to_draw_from = HttpLoader(vocabulary=range(5, 5))
    with pytest.raises(LoadClientFailed, match="a vocabulary needs at least one token"):
        list(nothing_to_draw_from(endpoint(server.url), WORKLOAD, CLOSED, seed=1))


def test_the_client_dies_with_its_owner(server: Server, tmp_path: Path) -> None:
    server.behaviour = "hang"
    script = tmp_path / "owner.py"
    script.write_text(
        "import sys, time\n"
        "sys.path[:0] = [sys.argv[1]]\n"
        "from test_http_loader import CLOSED, WORKLOAD, endpoint\n"
        "from autotune.load.http import HttpLoader\n"
        "blocks = HttpLoader()(endpoint(sys.argv[2]), WORKLOAD, CLOSED, seed=1)\n"
        "next(blocks)\n"
        "print('loading', flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, str(script), str(Path(__file__).parent), server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        client = client_of(owner.pid)
        owner.kill()
    client.wait(2)
    assert not client.is_running()


def test_the_key_is_in_no_command_line_and_no_environment(server: Server) -> None:
    server.behaviour = "hang"
    blocks = HttpLoader()(endpoint(server.url), WORKLOAD, CLOSED, seed=1)
    next(blocks)
    client = client_of(os.getpid())
    seen = json.dumps([client.cmdline(), client.environ()])
    blocks.close()
    assert "secret-key" not in seen


def test_a_slow_reader_does_not_hold_up_the_load(server: Server) -> None:
    server.delay_s = 0.01
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=4), requests=1, duration_s=2.5)
    blocks = HttpLoader()(endpoint(server.url), WORKLOAD, rung, seed=1)
    first = next(blocks)
    time.sleep(2.5)
    rest = list(blocks)
    sent = sorted(r.sent_s for r in records_of([first, *rest]))
    assert max(later - earlier for earlier, later in itertools.pairwise(sent)) < 0.5


def test_a_job_survives_its_journey() -> None:
    shapes = (
        RequestShape(
            prompt=LogNormalLength(median=9.5, sigma=0.5, low=1, high=99),
            output=UniformLength(low=1, high=2),
            prefix=SharedPrefix(tokens=3, groups=2),
            share=0.25,
        ),
        RequestShape(prompt=FixedLength(tokens=1), output=FixedLength(tokens=1), n=3),
    )
    rungs = (CLOSED, Rung(name="p", arrivals=Poisson(rate_rps=0.5), requests=3, duration_s=1.5))
    job = LoadJob(
        url="http://localhost:1",
        api_key="k",
        model="m",
        workload=Workload(name="w", shapes=shapes, rungs=rungs, reference_rungs=("p",)),
        rung=rungs[1],
        seed=2**70,
        vocabulary=range(3, 9),
        drain_limit_s=1.0,
        request_timeout_s=2.0,
    )
    assert LoadJob.from_line(job.to_line()) == job
