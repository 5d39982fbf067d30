"""What `autotune.trial.seams.Loader` promises, on both implementations: HTTP against a real vLLM, and simulated."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from autotune.engine.model_files import resolve_model
from autotune.engine.simulated import SimulatedLauncher
from autotune.engine.vllm import VllmLauncher
from autotune.load.http import HttpLoader
from autotune.load.server_side import counted_otherwise
from autotune.load.simulated import SimulatedLoader
from autotune.load.validity import unusable
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import LoadBlock, RequestRecord
from autotune.spec.trace import Trace, TraceRequest
from autotune.spec.workload import (
    ClosedLoop,
    Conversation,
    FixedLength,
    Poisson,
    RequestForm,
    RequestShape,
    Rung,
    SharedPrefix,
    UniformLength,
    Workload,
)
from autotune.trial.seams import Launcher, Loader

SHAPE = RequestShape(prompt=UniformLength(low=40, high=100), output=UniformLength(low=4, high=16))
PREFIXED = RequestShape(
    prompt=FixedLength(tokens=32), output=FixedLength(tokens=4), prefix=SharedPrefix(tokens=256, groups=1)
)
CLOSED = Rung(name="closed", arrivals=ClosedLoop(concurrency=8), requests=40)
OPEN = Rung(name="open", arrivals=Poisson(rate_rps=20), requests=30)


def workload(shape: RequestShape = SHAPE) -> Workload:
    return Workload(name="w", shapes=(shape,), rungs=(), reference_rungs=())


@dataclass(frozen=True)
class Loading:
    endpoint: Endpoint
    loader: Loader

    def blocks(self, rung: Rung, shape: RequestShape = SHAPE, seed: int = 1) -> list[LoadBlock]:
        return list(self.loader(self.endpoint, workload(shape), rung, seed=seed))

    def records(self, rung: Rung, shape: RequestShape = SHAPE, seed: int = 1) -> list[RequestRecord]:
        return [record for block in self.blocks(rung, shape, seed) for record in block.records]


@pytest.fixture(
    scope="module",
    params=["simulated", pytest.param("real", marks=[pytest.mark.engine, pytest.mark.timeout(300)])],
)
def loading(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loading]:
    launcher: Launcher
    loader: Loader
    if request.param == "simulated":
        launcher, loader = SimulatedLauncher(), SimulatedLoader()
        config = EngineConfig(model="m")
    else:
        launcher = VllmLauncher(vllm_python=Path(sys.executable), logs=tmp_path_factory.mktemp("logs"), platform="cpu")
        loader = HttpLoader()
        flags: dict[str, FlagValue] = {
            "enforce-eager": True,
            "kv-cache-memory-bytes": "64M",
            "max-model-len": 2048,
            "enable-prompt-tokens-details": True,
        }
        config = EngineConfig(model=resolve_model("builtin:tiny"), flags=flags)
    with ExitStack() as stack:
        started = stack.enter_context(launcher(config, ("cpu",), name="contract", cancelled=lambda: False))
        assert isinstance(started, Endpoint), started
        yield Loading(endpoint=started, loader=loader)


def soon(condition: Callable[[], bool], *, within_s: float) -> bool:
    end_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("rung", [CLOSED, OPEN], ids=["closed", "open"])
def test_every_request_comes_back_answered_as_asked(loading: Loading, rung: Rung) -> None:
    records = loading.records(rung)
    assert len(records) == rung.requests
    assert unusable(rung, records, lateness_limit_ms=2000) == ()


def test_the_seed_decides_what_is_asked(loading: Loading) -> None:
    first, again, other = (
        sorted((r.asked_prompt_tokens, r.asked_output_tokens) for r in loading.records(CLOSED, seed=seed))
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_blocks_go_forward_and_end_with_nothing_in_flight(loading: Loading) -> None:
    blocks = loading.blocks(CLOSED)
    assert all(earlier.elapsed_s <= later.elapsed_s for earlier, later in itertools.pairwise(blocks))
    assert [sending for sending, _ in itertools.groupby(block.sending for block in blocks)] == [True, False]
    assert blocks[-1].in_flight == 0


def test_streamed_tokens_add_up_to_what_was_answered(loading: Loading) -> None:
    blocks = loading.blocks(CLOSED)
    answered = sum(r.output_tokens or 0 for block in blocks for r in block.records)
    assert blocks[-1].streamed_tokens == answered


def test_a_rung_with_a_duration_goes_on_sending_for_it(loading: Loading) -> None:
    rung = Rung(name="long", arrivals=ClosedLoop(concurrency=4), requests=1, duration_s=1.5)
    blocks = loading.blocks(rung)
    until_s = next(block.elapsed_s for block in blocks if not block.sending)
    assert until_s == pytest.approx(1.5, abs=0.5)
    assert sum(len(block.records) for block in blocks) > 4


def test_prompts_of_another_seed_find_nothing_in_the_prefix_cache(loading: Loading) -> None:
    loading.records(CLOSED, seed=11)
    assert sum(r.cached_tokens or 0 for r in loading.records(CLOSED, seed=12)) == 0


def test_a_shared_prefix_is_found_there_from_its_second_request_on(loading: Loading) -> None:
    rung = Rung(name="prefix", arrivals=ClosedLoop(concurrency=1), requests=6)
    cached = [r.cached_tokens for r in loading.records(rung, PREFIXED, seed=21)]
    assert cached == [0] + [256] * 5


def test_several_sequences_of_one_request_are_counted_together(loading: Loading) -> None:
    shape = RequestShape(prompt=FixedLength(tokens=40), output=FixedLength(tokens=6), n=3)
    rung = Rung(name="n", arrivals=ClosedLoop(concurrency=2), requests=4)
    records = loading.records(rung, shape)
    assert [(r.n, r.output_tokens, r.error) for r in records] == [(3, 18, None)] * 4


def test_a_closed_loop_keeps_as_many_requests_in_flight_as_it_has_clients(loading: Loading) -> None:
    shape = RequestShape(prompt=FixedLength(tokens=40), output=FixedLength(tokens=24))
    in_flight = []
    for clients in (1, 16):
        rung = Rung(name=f"of {clients}", arrivals=ClosedLoop(concurrency=clients), requests=6 * clients)
        records = loading.records(rung, shape)
        sent = [record.sent_s for record in records]
        done = [record.done_s for record in records if record.done_s is not None]
        assert len(done) == len(sent) == 6 * clients
        in_flight.append(max(sum(s <= at for s in sent) - sum(d <= at for d in done) for at in sent))
    assert in_flight == [1, 16]


def test_closing_the_iterator_early_leaves_the_engine_idle_within_two_seconds(loading: Loading) -> None:
    def idle() -> bool:
        sample = loading.endpoint.scrape()
        return sample is not None and not sample.running and not sample.waiting

    long = RequestShape(prompt=FixedLength(tokens=40), output=FixedLength(tokens=1500))
    rung = Rung(name="cut", arrivals=ClosedLoop(concurrency=8), requests=1000)
    blocks = loading.loader(loading.endpoint, workload(long), rung, seed=1)
    assert next(blocks).in_flight == 8
    blocks.close()  # type: ignore[attr-defined]
    assert soon(idle, within_s=2)


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.parametrize("loading", ["real"], indirect=True)
def test_the_servers_own_counters_agree_with_the_records(loading: Loading) -> None:
    before = loading.endpoint.scrape()
    records = loading.records(CLOSED, seed=31)
    after = loading.endpoint.scrape()
    assert before is not None and after is not None
    for counter, counted in (
        ("generation_tokens", sum(r.output_tokens or 0 for r in records)),
        ("prompt_tokens", sum(r.prompt_tokens or 0 for r in records)),
        ("requests_done", len(records)),
    ):
        assert getattr(after, counter) - getattr(before, counter) == counted, counter


def test_a_conversation_finds_what_was_said_before_in_the_prefix_cache(loading: Loading) -> None:
    shape = RequestShape(
        prompt=FixedLength(tokens=128),
        output=FixedLength(tokens=128),
        conversation=Conversation(turns=FixedLength(tokens=3)),
    )
    rung = Rung(name="talk", arrivals=ClosedLoop(concurrency=1), requests=3)
    records = sorted(loading.records(rung, shape), key=lambda record: record.sent_s)
    # The last token of an answer is never computed again, so the block that it ends isn't there yet.
    assert [(r.error, r.prompt_tokens) for r in records] == [(None, 128), (None, 384), (None, 640)]
    assert [(r.cached_tokens or 0) >= least for r, least in zip(records, (0, 128, 384), strict=True)] == [True] * 3


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.parametrize("loading", ["real"], indirect=True)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("parameters", ["{}", '{"response_format": {"type": "json_object"}}'], ids=["free", "json"])
def test_a_real_vllm_answers_chats_free_and_in_json_streamed_and_whole(
    loading: Loading, streamed: bool, parameters: str
) -> None:
    form = RequestForm(chat=True, streamed=streamed, parameters=parameters)
    shape = RequestShape(prompt=FixedLength(tokens=40), output=FixedLength(tokens=12), form=form)
    rung = Rung(name=f"chat {streamed} {parameters}", arrivals=ClosedLoop(concurrency=2), requests=4)
    records = loading.records(rung, shape)
    assert unusable(rung, records) == ()
    assert all((r.output_tokens or 0) <= 12 for r in records)
    if streamed and form.fixes_length:
        assert {len(r.token_gaps_us) // 4 + 1 for r in records} == {12}


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.parametrize("loading", ["real"], indirect=True)
def test_logged_texts_share_their_prefix_within_a_rung_and_nothing_with_the_next(loading: Loading) -> None:
    body = json.dumps({"prompt": "the same long text over and over again " * 30})
    row = TraceRequest(at_s=None, prompt_tokens=1, output_tokens=4, line=1, body=body)
    trace = Trace(file="t", format="openai", rows=(row, row), exact=False)
    logged = Workload(name="w", shapes=(), rungs=(), reference_rungs=(), trace=trace)
    for name in ("one", "other"):
        rung = Rung(name=name, arrivals=ClosedLoop(concurrency=1), requests=2)
        blocks = loading.loader(loading.endpoint, logged, rung, seed=1)
        first, second = sorted((r for block in blocks for r in block.records), key=lambda record: record.sent_s)
        assert (first.error, first.cached_tokens or 0) == (None, 0)
        assert (second.cached_tokens or 0) > (second.prompt_tokens or 0) / 2


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.parametrize("loading", ["real"], indirect=True)
def test_a_strangers_request_shows_in_the_servers_counters(loading: Loading) -> None:
    shape = RequestShape(prompt=FixedLength(tokens=40), output=FixedLength(tokens=6), n=3)
    before = loading.endpoint.scrape()
    ours = loading.records(CLOSED, shape, seed=41)
    between = loading.endpoint.scrape()
    loading.records(Rung(name="stranger", arrivals=ClosedLoop(concurrency=1), requests=1), shape, seed=42)
    after = loading.endpoint.scrape()
    assert before is not None and between is not None and after is not None
    assert counted_otherwise(ours, [before, between]) == []
    assert any("someone else uses it" in reason for reason in counted_otherwise(ours, [before, after]))


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.parametrize("loading", ["real"], indirect=True)
def test_two_clients_get_from_an_engine_what_one_does(loading: Loading) -> None:
    two = replace(loading, loader=HttpLoader(clients=2))
    records = two.records(CLOSED, seed=51)
    assert unusable(CLOSED, records) == ()
    asked = sorted((r.asked_prompt_tokens, r.asked_output_tokens) for r in records)
    assert asked == sorted((r.asked_prompt_tokens, r.asked_output_tokens) for r in loading.records(CLOSED, seed=51))
