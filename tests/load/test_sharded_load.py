"""Several client processes show the same as one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_http_loader import CLOSED, WORKLOAD, Server, endpoint, load, records_of

from autotune.load.clients import clients_for, shares
from autotune.load.http import HttpLoader, LoadClientFailed
from autotune.load.traffic import plan
from autotune.spec.measurement import LoadBlock, RequestRecord
from autotune.spec.workload import ClosedLoop, FixedLength, Poisson, RequestShape, Rung, Workload

OPEN = Rung(name="r", arrivals=Poisson(rate_rps=40), requests=31)
TWO = HttpLoader(clients=2)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def most_open(records: list[RequestRecord]) -> int:
    edges = sorted([(r.sent_s, 1) for r in records] + [(r.done_s or 0.0, -1) for r in records])
    return max(itertools.accumulate(step for _, step in edges))


@pytest.mark.timeout(20)
def test_two_clients_send_the_requests_that_one_would(server: Server) -> None:
    load(server, OPEN, TWO)
    planned = itertools.islice(plan(WORKLOAD, OPEN, seed=3), OPEN.requests)
    assert sorted(body["prompt"] for body in server.bodies) == sorted(request.prompt() for request in planned)  # type: ignore[type-var]


@pytest.mark.timeout(20)
def test_two_clients_keep_to_the_one_schedule(server: Server) -> None:
    records = records_of(load(server, OPEN, TWO))
    planned = itertools.islice(plan(WORKLOAD, OPEN, seed=3), OPEN.requests)
    assert sorted(r.scheduled_s for r in records) == pytest.approx([p.scheduled_s for p in planned], abs=1e-5)
    assert all(0 <= r.sent_s - r.scheduled_s < 0.25 for r in records)


@pytest.mark.timeout(20)
def test_two_clients_together_have_the_concurrency_of_one(server: Server) -> None:
    server.delay_s = 0.02
    records = records_of(load(server, replace(CLOSED, requests=20), TWO))
    assert len(records) == 20
    assert most_open(records) == 4


@pytest.mark.timeout(20)
def test_blocks_of_two_clients_read_as_one_clients(server: Server) -> None:
    server.delay_s = 0.1
    blocks = load(server, Rung(name="r", arrivals=ClosedLoop(concurrency=4), requests=1, duration_s=2.5), TWO)
    times_s = [block.elapsed_s for block in blocks]
    assert times_s == sorted(times_s)
    assert [sending for sending, _ in itertools.groupby(block.sending for block in blocks)] == [True, False]
    until = next(number for number, block in enumerate(blocks) if not block.sending)
    assert blocks[until].elapsed_s == blocks[until - 1].elapsed_s == pytest.approx(2.5, abs=0.2)
    assert len(blocks) < 3 + 2 + 4
    assert (blocks[0].in_flight, blocks[-1].in_flight) == (4, 0)
    assert blocks[-1].streamed_tokens == 4 * len(records_of(blocks))


@pytest.mark.timeout(20)
def test_one_of_two_clients_killed_fails_the_load(server: Server) -> None:
    server.behaviour = "hang"
    blocks = TWO(endpoint(server.url), WORKLOAD, CLOSED, seed=1)
    next(blocks)
    clients = [p for p in psutil.Process(os.getpid()).children() if "autotune.load.client" in p.cmdline()]
    assert len(clients) == 2
    clients[1].kill()
    with pytest.raises(LoadClientFailed, match="ended with -9"):
        list(blocks)
    assert not any(client.is_running() for client in clients)


@pytest.mark.timeout(20)
def test_a_client_at_ease_says_so(server: Server) -> None:
    server.delay_s = 0.2
    blocks: list[LoadBlock] = load(
        server, Rung(name="r", arrivals=ClosedLoop(concurrency=1), requests=1, duration_s=2.2)
    )
    busy = [block.client_busy for block in blocks if block.client_busy is not None]
    assert len(busy) >= 2
    assert max(busy) < 0.7


@given(st.integers(1, 300), st.integers(1, 3000), st.data())
def test_shares_of_a_closed_loop_add_up_to_it(concurrency: int, requests: int, data: st.DataObject) -> None:
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=concurrency), requests=requests)
    parts = shares(rung, data.draw(st.integers(1, concurrency)))
    parallel = [part.arrivals.concurrency for part in parts if isinstance(part.arrivals, ClosedLoop)]
    assert (sum(parallel), sum(part.requests for part in parts)) == (concurrency, requests)
    assert min(parallel) >= 1 and max(parallel) - min(parallel) <= 1


@given(st.integers(1, 3000), st.data())
def test_shares_of_an_open_loop_add_up_to_it(requests: int, data: st.DataObject) -> None:
    parts = shares(replace(OPEN, requests=requests), data.draw(st.integers(1, min(requests, 64))))
    assert sum(part.requests for part in parts) == requests


def test_more_clients_than_concurrency_are_refused() -> None:
    with pytest.raises(ValueError, match="5 clients can't share the load of r"):
        shares(CLOSED, 5)


def workload(*, output: int) -> Workload:
    shape = RequestShape(prompt=FixedLength(tokens=500), output=FixedLength(tokens=output))
    return Workload(name="w", shapes=(shape,), rungs=(), reference_rungs=())


@pytest.mark.parametrize(
    ("rate_rps", "cores", "expected"),
    [(1, 64, 1), (20, 64, 1), (200, 64, 6), (200, 8, 4), (200, 1, 1)],
)
def test_an_open_loop_gets_clients_by_its_tokens_per_second(rate_rps: float, cores: int, expected: int) -> None:
    rung = Rung(name="r", arrivals=Poisson(rate_rps=rate_rps), requests=400)
    found = clients_for(workload(output=300), rung, seed=1, cores=cores)
    assert abs(found - expected) <= (1 if expected == 6 else 0)


@pytest.mark.parametrize(("concurrency", "expected"), [(1, 1), (32, 1), (256, 3), (1024, 9)])
def test_a_closed_loop_gets_clients_by_its_concurrency(concurrency: int, expected: int) -> None:
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=concurrency), requests=2048)
    assert clients_for(workload(output=300), rung, seed=1, cores=64) == expected
