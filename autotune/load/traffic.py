"""The requests of one rung: lengths, prompts and arrival times, all derived from a seed.

A request depends on the seed, the rung's name and its own index alone, so any of them can be made again without those
before it, and no two rungs or trials (different seeds) send the same prompt: a warm prefix cache can't be measured by
accident. A shared prefix, or a block of a trace, is the same within its rung, and new in the next one. Texts are sent
as they are; there a salt of the seed and the rung keeps the cache from knowing them (docs/workloads.md).
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.load import draws
from autotune.load.arrivals import arrival_times_s
from autotune.load.words import words
from autotune.spec.trace import LaterTurn, Trace, TraceRequest
from autotune.spec.workload import RequestForm, RequestShape, Rung, Workload

SAFE_VOCABULARY = range(300, 1800)
"""Ordinary tokens in any current tokenizer: above the special, byte and control tokens that come first."""

_MARGIN = 300
"""Token ids left out at either end of a vocabulary, where special and padding tokens lie."""

_TEXT_PIECE_BYTES = 64

PLAIN = RequestForm()

Answer = tuple[int, ...] | str
Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """What will be sent. `scheduled_s` is the arrival in an open loop and None in a closed one.

    `prompt_tokens` includes the shared prefix of `prefix_tokens` and, in a conversation, all that was said before;
    `output_tokens` is per sequence. `blocks`: ids of what the prompt consists of, `block_tokens` each. `body`: what a
    log holds, to be sent as it is. `turns`: what follows on the first request of a conversation; `answers` are those
    given so far (of `answer_tokens`), so their number says which turn this is.
    """

    index: int
    scheduled_s: float | None
    prompt_tokens: int
    output_tokens: int
    n: int = 1
    prefix_tokens: int = 0
    prefix_group: str | None = None
    seed: int = 0
    stream: str = ""
    vocabulary: range = field(default=SAFE_VOCABULARY, repr=False)
    form: RequestForm = PLAIN
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0
    cycle: int = 0
    body: str | None = field(default=None, repr=False)
    turns: tuple[LaterTurn, ...] = ()
    answers: tuple[Answer, ...] = field(default=(), repr=False)
    answer_tokens: tuple[int, ...] = ()
    think_s: float = 0.0

    @property
    def goes_on(self) -> bool:
        return len(self.answers) < len(self.turns)

    @property
    def is_text(self) -> bool:
        """The server makes its tokens, so nobody else knows how many there are."""
        return self.form.chat or (self.body is not None and isinstance(json.loads(self.body).get("prompt"), str))

    @property
    def salt(self) -> str | None:
        """Of vLLM's prefix cache, where the prompt itself isn't new in each rung."""
        if self.body is None:
            return None
        return draws.digest(self.seed, self.stream, "salt", self.cycle).hex()

    def prompt(self) -> list[int]:
        """Token ids, `prompt_tokens` of them. Not for a request with a `body`."""
        if self.blocks:
            return self._block_tokens()
        opening = self._random("prompt", self.index)
        ids = draws.tokens(opening, self._own_tokens(0), self.vocabulary)
        if self.prefix_group is not None:
            shared = self._random("prefix", self.prefix_group)
            ids = draws.tokens(shared, self.prefix_tokens, self.vocabulary) + ids
        for place, answer in enumerate(self.answers):
            assert not isinstance(answer, str)
            said = self._random("prompt", f"{self.index}/{place + 1}")
            ids += [*answer, *draws.tokens(said, self.turns[place].prompt_tokens, self.vocabulary)]
        return ids

    def messages(self) -> list[Message]:
        """Of a chat. Drawn words stand for tokens where no log says what was said."""
        if self.body is not None:
            found: list[Message] = json.loads(self.body)["messages"]
        else:
            found = []
            if self.prefix_group is not None:
                shared = words(self._random("prefix", self.prefix_group), self.prefix_tokens)
                found.append({"role": "system", "content": shared})
            opening = words(self._random("prompt", self.index), self._own_tokens(0))
            found.append({"role": "user", "content": opening})
        for place, answer in enumerate(self.answers):
            turn = self.turns[place]
            said = turn.text or words(self._random("prompt", f"{self.index}/{place + 1}"), turn.prompt_tokens)
            found += [{"role": "assistant", "content": str(answer)}, {"role": "user", "content": said}]
        return found

    def followed_by(self, answer: Answer | None) -> PlannedRequest | None:
        """The conversation's next turn, unscheduled; None when this was the last. Without an `answer` one is drawn."""
        if not self.goes_on:
            return None
        place = len(self.answers)
        if answer is None:
            drawn = self._random("answer", f"{self.index}/{place}")
            answer = (
                words(drawn, self.output_tokens)
                if self.form.chat
                else tuple(draws.tokens(drawn, self.output_tokens, self.vocabulary))
            )
        length = self.output_tokens if isinstance(answer, str) else len(answer)
        turn = self.turns[place]
        return replace(
            self,
            scheduled_s=None,
            prompt_tokens=self.prompt_tokens + length + turn.prompt_tokens,
            output_tokens=turn.output_tokens,
            answers=(*self.answers, answer),
            answer_tokens=(*self.answer_tokens, length),
        )

    def pieces(self) -> Iterator[tuple[Hashable, int]]:
        """What the prompt consists of, in order: equal keys are equal tokens, so many each.

        Two prompts share what their first pieces have in common, and nothing beyond it.
        """
        if self.blocks:
            left = self.prompt_tokens
            for one in self.blocks:
                yield ("block", self.cycle, one), min(self.block_tokens, left)
                left -= self.block_tokens
            return
        if self.body is not None:
            yield from _text_pieces(self.opening_text(), self._opening_tokens(), salt=self.cycle)
        else:
            if self.prefix_group is not None:
                yield ("prefix", self.prefix_group), self.prefix_tokens
            yield ("own", self.index, 0), self._own_tokens(0)
        for place, tokens in enumerate(self.answer_tokens):
            yield ("answer", self.index, place), tokens
            yield ("own", self.index, place + 1), self._own_tokens(place + 1)

    def opening_text(self) -> str:
        """What of a `body` the server reads first, as near as can be told without its chat template."""
        assert self.body is not None
        said = json.loads(self.body)
        if "messages" not in said:
            return said["prompt"] if isinstance(said["prompt"], str) else json.dumps(said["prompt"])
        return "".join(f"<{one['role']}>\n{text_of(one)}\n" for one in said["messages"])

    def _own_tokens(self, turn: int) -> int:
        return self.turns[turn - 1].prompt_tokens if turn else self._opening_tokens() - self.prefix_tokens

    def _opening_tokens(self) -> int:
        said = sum(turn.prompt_tokens for turn in self.turns[: len(self.answers)])
        return self.prompt_tokens - said - sum(self.answer_tokens)

    def _block_tokens(self) -> list[int]:
        ids: list[int] = []
        for one in self.blocks:
            ids += draws.tokens(self._random("block", f"{self.cycle}/{one}"), self.block_tokens, self.vocabulary)
        return ids[: self.prompt_tokens]

    def _random(self, purpose: str, key: object) -> np.random.Generator:
        return draws.generator(self.seed, self.stream, purpose, key)


def plan(workload: Workload, rung: Rung, *, seed: int, vocabulary: range = SAFE_VOCABULARY) -> Iterator[PlannedRequest]:
    """The rung's requests in order of sending, without end: whoever sends them decides when the rung is over.

    Of a conversation the first request only; `followed_by` makes the others. Raises ValueError for a vocabulary without
    tokens and for shapes whose shares don't add up to something.
    """
    if len(vocabulary) < 1:
        raise ValueError("a vocabulary needs at least one token")
    arrivals = arrival_times_s(rung, seed=seed, trace=workload.trace)
    if workload.trace is not None:
        for index, arrival in enumerate(arrivals):
            cycle, place = divmod(index, len(workload.trace.rows))
            row = workload.trace.rows[place]
            request = _of_row(row, workload.trace, index=index, cycle=cycle)
            yield replace(request, scheduled_s=arrival, seed=seed, stream=rung.name, vocabulary=vocabulary)
    shares = np.array([shape.share for shape in workload.shapes], dtype=float)
    if not len(shares) or shares.min() < 0 or shares.sum() <= 0:
        raise ValueError("the shapes' shares must be at least 0 and not all 0")
    upper = np.cumsum(shares / shares.sum())
    for index, arrival in enumerate(arrivals):
        random = draws.generator(seed, rung.name, "shape", index)
        which = min(int(np.searchsorted(upper, random.random(), side="right")), len(shares) - 1)
        request = _of_shape(workload.shapes[which], random, index=index, which=which)
        yield replace(request, scheduled_s=arrival, seed=seed, stream=rung.name, vocabulary=vocabulary)


def vocabulary_of(model: str) -> range:
    """Ordinary tokens of a model on disk, from its config.json; `SAFE_VOCABULARY` where that can't be read.

    A model named on a hub isn't looked up: prompts drawn from 1,500 tokens are as good for load as any other.
    """
    try:
        config = json.loads((Path(model) / "config.json").read_text())
        size = int((config.get("text_config") or config)["vocab_size"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return SAFE_VOCABULARY
    if size > 4 * _MARGIN:
        return range(_MARGIN, size - _MARGIN)
    return range(min(_MARGIN, size // 4), max(size // 4 + 1, size - size // 4))


def text_of(message: Message) -> str:
    """The text of one message of a chat, whether it is given whole or in parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content if isinstance(content, str) else json.dumps(message.get("tool_calls"))


def _of_row(row: TraceRequest, trace: Trace, *, index: int, cycle: int) -> PlannedRequest:
    said = json.loads(row.body) if row.body is not None else {}
    parameters = {key: value for key, value in said.items() if key not in ("messages", "prompt")}
    return PlannedRequest(
        index=index,
        scheduled_s=None,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        n=row.n,
        form=RequestForm(chat=row.chat, streamed=row.streamed, parameters=json.dumps(parameters)),
        blocks=row.blocks,
        block_tokens=trace.block_tokens,
        cycle=cycle,
        body=row.body,
        turns=row.later,
    )


def _of_shape(shape: RequestShape, random: np.random.Generator, *, index: int, which: int) -> PlannedRequest:
    tokens = draws.length(shape.prompt, random)
    prefix_tokens, group = _prefix(shape, which, random)
    output_tokens = max(1, draws.length(shape.output, random))
    turns: tuple[LaterTurn, ...] = ()
    if shape.conversation is not None:
        turns = tuple(
            LaterTurn(
                prompt_tokens=draws.length(shape.prompt, random),
                output_tokens=max(1, draws.length(shape.output, random)),
                text="",
            )
            for _ in range(draws.length(shape.conversation.turns, random) - 1)
        )
    return PlannedRequest(
        index=index,
        scheduled_s=None,
        prompt_tokens=prefix_tokens + tokens,
        output_tokens=output_tokens,
        n=shape.n,
        prefix_tokens=prefix_tokens,
        prefix_group=group,
        form=shape.form,
        turns=turns,
        think_s=shape.conversation.think_s if shape.conversation else 0.0,
    )


def _prefix(shape: RequestShape, which: int, random: np.random.Generator) -> tuple[int, str | None]:
    if shape.prefix is None or shape.prefix.tokens == 0:
        return 0, None
    return shape.prefix.tokens, f"{which}.{int(random.integers(shape.prefix.groups))}"


def _text_pieces(text: str, tokens: int, *, salt: Hashable) -> Iterator[tuple[Hashable, int]]:
    """Its tokens spread evenly over its bytes."""
    data = text.encode()
    for start in range(0, len(data), _TEXT_PIECE_BYTES):
        part = data[start : start + _TEXT_PIECE_BYTES]
        end = start + len(part)
        yield ("text", salt, part), round(end * tokens / len(data)) - round(start * tokens / len(data))
