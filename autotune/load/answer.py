"""One response as it comes in.

The cost per token decides what one core can carry, so a token's event is only counted and timed; nothing in it is
parsed. Only the last event of an answer is: with `include_usage` it holds the server's own token counts
(vllm/entrypoints/openai/completion/serving.py, completion_stream_generator).
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from typing import Any

_MAX_GAP_US = 2**32 - 1
_ENOUGH_TO_TELL = 8


class Answer:
    """`count` events that carried tokens, timed in microseconds.

    A chat's stream begins with an event per sequence that names the role and carries no token. `kept`: the events
    themselves, where a conversation goes on from what they say. `repeats`: events that were the same bytes as the one
    before them, so the same text; comparing costs some tens of nanoseconds, and reading them would cost microseconds.
    """

    __slots__ = ("count", "done", "first_us", "gaps_us", "kept", "last_event", "last_us", "repeats", "roles", "tail")

    def __init__(self, *, chat: bool = False, keep: bool = False) -> None:
        self.count = 0
        self.first_us = self.last_us = 0
        self.gaps_us = array("I")
        self.last_event = self.tail = b""
        self.repeats = 0
        self.done = False
        self.roles = chat
        self.kept: list[bytes] | None = [] if keep else None

    def feed(self, data: bytes, now_us: int) -> int:
        """Returns how many events with a payload it held."""
        if self.tail:
            data = self.tail + data
        events = data.split(b"\n\n")
        self.tail = events.pop()
        fresh = 0
        for event in events:
            if event.startswith(b"data: {"):
                if self.roles:
                    if b'"role":"assistant"' in event and b'"content":""' in event:
                        continue
                    self.roles = False
                if self.count:
                    self.gaps_us.append(min(now_us - self.last_us, _MAX_GAP_US))
                    self.repeats += event == self.last_event
                else:
                    self.first_us = now_us
                self.last_us = now_us
                self.last_event = event
                self.count += 1
                fresh += 1
                if self.kept is not None:
                    self.kept.append(event)
            elif event == b"data: [DONE]":
                self.done = True
        return fresh

    def whole(self, data: bytes, now_us: int) -> None:
        """A response that wasn't streamed: all its tokens came at once."""
        self.last_event = b"data: " + data
        self.first_us = self.last_us = now_us
        self.count, self.done = 1, True
        if self.kept is not None:
            self.kept.append(self.last_event)

    def close(self) -> dict[str, Any]:
        """The last event, parsed; it is taken off the count when it carried no token (usage or an error).

        Raises ValueError when it isn't a JSON object.
        """
        if not self.last_event:
            return {}
        said = json.loads(self.last_event[len(b"data: ") :])
        if not isinstance(said, dict):
            raise ValueError("no JSON object")
        if not said.get("choices"):
            self.count -= 1
            if self.gaps_us:
                self.last_us -= self.gaps_us.pop()
        return said

    def degenerate(self, last: Mapping[str, Any]) -> bool | None:
        """Whether a chat's answer was empty or one token over and over; None for one too short to tell.

        `last` is what `close` returned. Streamed, the first event and the one that ends the answer may differ from the
        rest. Sequences of one request (`n`) come mixed, so theirs isn't found.
        """
        message = next((choice.get("message") for choice in last.get("choices") or ()), None)
        if message is None:
            return self.repeats >= self.count - 3 if self.count >= _ENOUGH_TO_TELL else None
        text = (message.get("content") or message.get("reasoning") or "").strip()
        if not text:
            return True
        return len(set(text)) == 1 or len(set(text.split())) == 1 if len(text) >= _ENOUGH_TO_TELL else None

    def said(self, *, chat: bool) -> tuple[int, ...] | str | None:
        """What the first sequence said: text in a chat, otherwise token ids. None when the server didn't give them."""
        ids: list[int] = []
        text: list[str] = []
        for event in self.kept or ():
            for choice in json.loads(event[len(b"data: ") :]).get("choices") or ():
                if choice.get("index") == 0:
                    ids += choice.get("token_ids") or ()
                    spoken = choice.get("delta") or choice.get("message") or {}
                    text.append(spoken.get("content") or spoken.get("reasoning") or "")
        if chat:
            return "".join(text)
        return tuple(ids) or None
