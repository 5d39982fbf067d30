"""What a request looks like on the wire, and what is read from its answer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from test_http_loader import Server, endpoint, records_of

from autotune.load.answer import Answer
from autotune.load.body import body_of, path_of
from autotune.load.http import HttpLoader
from autotune.load.job import LoadJob
from autotune.load.traffic import PlannedRequest, plan
from autotune.spec.measurement import RequestRecord
from autotune.spec.trace import LaterTurn, Trace, TraceRequest
from autotune.spec.workload import (
    ClosedLoop,
    Conversation,
    EmpiricalLength,
    FixedLength,
    Poisson,
    RequestForm,
    RequestShape,
    Rung,
    SharedPrefix,
    TraceArrivals,
    UniformLength,
    Workload,
)

pytestmark = pytest.mark.timeout(20)

SHAPE = RequestShape(prompt=FixedLength(tokens=6), output=FixedLength(tokens=4))
TALK = replace(SHAPE, conversation=Conversation(turns=FixedLength(tokens=3), think_s=0.05))
JSON_MODE = RequestForm(chat=True, parameters='{"response_format": {"type": "json_object"}, "temperature": 0.5}')


class ManyFormsServer(Server):
    """Answers chats and completions, streamed or whole; each answer says its own number, to be told apart by."""

    async def _serve(self) -> None:
        import asyncio

        self._stop = asyncio.Event()
        app = web.Application()
        app.router.add_post("/v1/completions", self._answer)
        app.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        chat = request.path == "/v1/chat/completions"
        number = len(self.bodies)
        prompt = body["messages" if chat else "prompt"]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": body["max_tokens"] * body["n"]}
        if not body.get("stream"):
            said: dict[str, Any] = (
                {"message": {"content": f"w{number}"}} if chat else {"text": "a", "token_ids": [number]}
            )
            return web.json_response({"choices": [{"index": 0, **said}], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if chat:
            await self._event(response, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for _ in range(body["max_tokens"]):
            piece: dict[str, Any] = (
                {"delta": {"content": f"w{number}"}} if chat else {"text": "a", "token_ids": [number]}
            )
            await self._event(response, {"choices": [{"index": 0, **piece}]})
        await self._event(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _event(self, response: web.StreamResponse, content: object) -> None:
        await response.write(b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n")


@pytest.fixture
def server() -> Iterator[ManyFormsServer]:
    server = ManyFormsServer()
    yield server
    server.close()


def workload(shape: RequestShape = SHAPE, trace: Trace | None = None) -> Workload:
    return Workload(name="w", shapes=() if trace is not None else (shape,), rungs=(), reference_rungs=(), trace=trace)


def one(shape: RequestShape = SHAPE, trace: Trace | None = None) -> PlannedRequest:
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=1), requests=1)
    return next(plan(workload(shape, trace), rung, seed=1))


def body(planned: PlannedRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body_of(planned, model="m"))
    return found


def logged(said: dict[str, Any], **given: Any) -> Trace:
    row = TraceRequest(at_s=None, prompt_tokens=9, output_tokens=5, line=1, body=json.dumps(said), **given)
    return Trace(file="t", format="openai", rows=(row,), exact=False)


def load(server: Server, workload: Workload, *, requests: int, clients: int = 1) -> list[RequestRecord]:
    rung = Rung(name="r", arrivals=ClosedLoop(concurrency=clients), requests=requests)
    return records_of(list(HttpLoader()(endpoint(server.url), workload, rung, seed=1)))


def test_a_chat_has_messages_and_its_prefix_is_the_system_prompt() -> None:
    planned = one(replace(SHAPE, form=RequestForm(chat=True), prefix=SharedPrefix(tokens=3)))
    said = body(planned)
    assert path_of(planned) == "/v1/chat/completions"
    assert [(m["role"], len(m["content"].split())) for m in said["messages"]] == [("system", 3), ("user", 6)]


def test_a_json_answer_may_end_where_its_grammar_ends() -> None:
    said = body(one(replace(SHAPE, form=JSON_MODE)))
    assert (said["response_format"], said["temperature"]) == ({"type": "json_object"}, 0.5)
    assert "ignore_eos" not in said


def test_an_answer_that_isnt_streamed_is_asked_for_without_stream_options() -> None:
    said = body(one(replace(SHAPE, form=RequestForm(streamed=False))))
    assert "stream" not in said and "stream_options" not in said


def test_a_logged_request_is_sent_as_it_was_with_a_salt_of_its_rung() -> None:
    messages = [{"role": "user", "content": "Hé?"}]
    trace = logged({"messages": messages, "top_p": 0.9}, chat=True, streamed=False)
    said = body(one(trace=trace))
    assert (said["messages"], said["top_p"], said["max_tokens"]) == (messages, 0.9, 5)
    rung = Rung(name="another", arrivals=ClosedLoop(concurrency=1), requests=1)
    elsewhere = body(next(plan(workload(trace=trace), rung, seed=1)))
    again = body(next(itertools.islice(plan(workload(trace=trace), rung, seed=1), 1, None)))
    assert len({said["cache_salt"], elsewhere["cache_salt"], again["cache_salt"]}) == 3


def test_logged_token_ids_are_sent_as_they_were() -> None:
    assert body(one(trace=logged({"prompt": [7, 8]})))["prompt"] == [7, 8]


def test_tools_are_part_of_the_prompt_and_not_called() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    said = body(one(trace=logged({"messages": [], "tools": tools}, chat=True)))
    assert (said["tools"], said["tool_choice"], said["ignore_eos"]) == (tools, "none", True)


def test_drawn_prompts_need_no_salt() -> None:
    assert "cache_salt" not in body(one())


def test_equal_blocks_of_a_trace_are_equal_tokens_and_another_rung_draws_others() -> None:
    rows = tuple(
        TraceRequest(at_s=at, prompt_tokens=tokens, output_tokens=1, line=1, blocks=blocks)
        for at, tokens, blocks in ((0.0, 20, (0, 1, 2)), (1.0, 24, (0, 1, 5)))
    )
    trace = Trace(file="t", format="mooncake", rows=rows, block_tokens=8)
    rung = Rung(name="r", arrivals=TraceArrivals(), requests=2)
    first, second, again = itertools.islice(plan(workload(trace=trace), rung, seed=1), 3)
    assert (len(first.prompt()), len(second.prompt())) == (20, 24)
    assert first.prompt()[:16] == second.prompt()[:16] and first.prompt()[16:] != second.prompt()[16:20]
    assert again.prompt()[:8] != first.prompt()[:8]
    elsewhere = next(plan(workload(trace=trace), replace(rung, name="other"), seed=1))
    assert elsewhere.prompt()[:8] != first.prompt()[:8]


def test_a_later_turn_resends_what_was_said_and_adds_to_it() -> None:
    opening = one(TALK)
    second = opening.followed_by((1, 2, 3, 4))
    assert second is not None
    assert second.prompt()[:10] == [*opening.prompt(), 1, 2, 3, 4]
    assert second.prompt_tokens == len(second.prompt()) == 16
    third = second.followed_by(None)
    assert third is not None and third.prompt()[:16] == second.prompt()
    assert third.followed_by(None) is None


@given(st.integers(0, 5), st.integers(1, 6), st.integers(1, 5), st.integers(1, 4))
def test_pieces_add_up_to_the_prompt(prefix: int, prompt: int, output: int, turns: int) -> None:
    shape = RequestShape(
        prompt=FixedLength(tokens=prompt),
        output=FixedLength(tokens=output),
        prefix=SharedPrefix(tokens=prefix) if prefix else None,
        conversation=Conversation(turns=FixedLength(tokens=turns)),
    )
    planned: PlannedRequest | None = one(shape)
    longest = 0
    while planned is not None:
        assert sum(tokens for _, tokens in planned.pieces()) == len(planned.prompt()) == planned.prompt_tokens
        longest = planned.prompt_tokens + planned.output_tokens
        planned = planned.followed_by(None)
    assert longest == shape.longest_tokens


def test_the_pieces_of_a_text_add_up_to_its_estimated_tokens() -> None:
    planned = one(trace=logged({"prompt": "é" * 500}))
    assert sum(tokens for _, tokens in planned.pieces()) == 9


def test_the_roles_event_of_a_chat_is_no_token() -> None:
    answer = Answer(chat=True)
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    assert answer.feed(role + role, 1) == 0
    assert answer.feed(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', 5) == 1
    assert (answer.count, answer.first_us) == (1, 5)


def test_a_chats_streamed_tokens_are_counted_as_a_completions_are(server: ManyFormsServer) -> None:
    [record] = load(server, workload(replace(SHAPE, form=RequestForm(chat=True))), requests=1)
    assert (record.error, record.output_tokens, len(record.token_gaps_us) // 4) == (None, 4, 3)
    assert (record.asked_prompt_tokens, record.asked_output_tokens) == (None, 4)


def chat_events(*contents: str, ended: str = "length") -> bytes:
    """As vLLM streams a chat: roles, then an event per token, the last of them saying why it ended, then the usage."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": one} for one in contents)]
    reasons = [None] * (len(deltas) - 1) + [ended]
    choices = [
        {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        for delta, reason in zip(deltas, reasons, strict=True)
    ]
    events = [head | {"choices": [choice]} for choice in choices] + [head | {"choices": [], "usage": {}}]
    text = "".join(f"data: {json.dumps(event, separators=(',', ':'))}\n\n" for event in events)
    return text.encode() + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("contents", "degenerate"),
    [
        (("!",) * 16, True),
        (("",) * 16, True),
        (("He", *("l",) * 15), True),
        (("a", "b") * 8, False),
        ((*("ha",) * 10, *"and then they all said no"), False),
        (("!",) * 7, None),
    ],
    ids=["one token", "empty", "begins with another", "two in turn", "ends otherwise", "too short"],
)
def test_a_streamed_chat_of_one_token_over_and_over_is_degenerate(
    contents: tuple[str, ...], degenerate: bool | None
) -> None:
    answer = Answer(chat=True)
    for start in range(0, len(data := chat_events(*contents)), 100):
        answer.feed(data[start : start + 100], start)
    assert answer.degenerate(answer.close()) == degenerate


@pytest.mark.parametrize(
    ("content", "degenerate"),
    [
        ("!!!!!!!!!!", True),
        ("no no no no no no", True),
        (" \n\n \n", True),
        (None, True),
        ("This is an answer.", False),
        ("Yes.", None),
    ],
)
def test_a_whole_chat_that_is_empty_or_one_word_is_degenerate(content: str | None, degenerate: bool | None) -> None:
    answer = Answer(chat=True)
    said = {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}}], "usage": {}}
    answer.whole(json.dumps(said).encode(), 1)
    assert answer.degenerate(answer.close()) == degenerate


@pytest.mark.parametrize("chat", [False, True])
def test_only_chats_are_judged_by_what_they_say(server: ManyFormsServer, chat: bool) -> None:
    shape = replace(SHAPE, output=FixedLength(tokens=12), form=RequestForm(chat=chat))
    [record] = load(server, workload(shape), requests=1)
    assert (record.error, record.degenerate) == (None, True if chat else None)
    assert record.about_prompt_tokens == (6 if chat else None)


@pytest.mark.parametrize("chat", [False, True])
def test_a_whole_answer_has_one_time_and_the_servers_counts(server: ManyFormsServer, chat: bool) -> None:
    [record] = load(server, workload(replace(SHAPE, n=2, form=RequestForm(chat=chat, streamed=False))), requests=1)
    assert (record.error, record.output_tokens, record.token_gaps_us) == (None, 8, b"")
    assert record.first_token_s == pytest.approx(record.done_s, abs=1e-4)


def test_an_answer_that_a_grammar_ends_is_not_held_to_a_length(server: ManyFormsServer) -> None:
    [record] = load(server, workload(replace(SHAPE, form=JSON_MODE)), requests=1)
    assert record.asked_output_tokens is None


@pytest.mark.parametrize("streamed", [False, True])
def test_a_conversation_resends_the_token_ids_that_the_engine_said(server: ManyFormsServer, streamed: bool) -> None:
    records = load(server, workload(replace(TALK, form=RequestForm(streamed=streamed))), requests=3)
    first, second, third = (b["prompt"] for b in server.bodies)
    answer = [1] * 4 if streamed else [1]
    assert isinstance(first, list) and second[: len(first) + len(answer)] == [*first, *answer]  # type: ignore[index]
    assert third[: len(second)] == second  # type: ignore[index, arg-type]
    assert [b.get("return_token_ids") for b in server.bodies] == [True, True, None]
    assert [r.error for r in records] == [None] * 3


def test_a_chat_goes_on_from_the_engines_own_words(server: ManyFormsServer) -> None:
    said = {"messages": [{"role": "user", "content": "A"}]}
    trace = logged(said, chat=True, later=(LaterTurn(prompt_tokens=1, output_tokens=2, text="B"),))
    load(server, workload(trace=trace), requests=2)
    assert server.bodies[1]["messages"] == [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "w1" * 5},
        {"role": "user", "content": "B"},
    ]
    assert [body["max_tokens"] for body in server.bodies] == [5, 2]


def test_a_later_turn_comes_when_the_user_has_thought(server: ManyFormsServer) -> None:
    records = load(server, workload(TALK), requests=3)
    by_time = sorted(records, key=lambda record: record.sent_s)
    for earlier, later in itertools.pairwise(by_time):
        assert later.scheduled_s - (earlier.done_s or 0.0) == pytest.approx(0.05, abs=0.02)
        assert later.sent_s >= later.scheduled_s


def test_later_turns_count_among_the_rungs_requests(server: ManyFormsServer) -> None:
    rung = Rung(name="r", arrivals=Poisson(rate_rps=100), requests=10)
    records = records_of(list(HttpLoader()(endpoint(server.url), workload(TALK), rung, seed=1)))
    assert len(records) == pytest.approx(10, abs=1)


def test_a_job_with_a_trace_and_a_conversation_survives_its_journey(tmp_path: Path) -> None:
    trace = logged({"prompt": "a"}, later=(LaterTurn(prompt_tokens=1, output_tokens=2, text="B"),), blocks=(1, 2))
    shape = replace(
        TALK,
        form=JSON_MODE,
        prompt=EmpiricalLength(values=(1, 9), weights=(0.5, 2.0)),
        conversation=Conversation(turns=UniformLength(low=1, high=3), think_s=2.0),
    )
    rung = Rung(name="r", arrivals=TraceArrivals(rate_scale=0.5), requests=1)
    job = LoadJob(
        url="u",
        api_key="k",
        model="m",
        workload=Workload(name="w", shapes=(shape,), rungs=(rung,), reference_rungs=("r",), trace=trace),
        rung=rung,
        seed=1,
        vocabulary=range(1, 2),
        drain_limit_s=1.0,
        request_timeout_s=1.0,
    )
    assert LoadJob.from_line(job.to_line()) == job


def test_a_burst_of_long_prompts_is_sent_on_time(server: ManyFormsServer) -> None:
    blocks = tuple(range(1000))  # each drawn by itself: tens of milliseconds per prompt
    rows = tuple(
        TraceRequest(at_s=at_s, prompt_tokens=8000, output_tokens=1, line=1, blocks=blocks)
        for at_s in (0.0, *[2.0] * 30)
    )
    trace = Trace(file="t", format="mooncake", rows=rows, block_tokens=8)
    rung = Rung(name="r", arrivals=TraceArrivals(), requests=31)
    records = records_of(list(HttpLoader()(endpoint(server.url), workload(trace=trace), rung, seed=1)))
    assert [record.error for record in records] == [None] * 31
    assert max(r.sent_s - r.scheduled_s for r in records) < 0.25
