"""Requests that were really made once, as a workload: when they came, how long they were, what they shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterTurn:
    """What a user says after an answer. `text` is what is sent; `prompt_tokens` is its length, estimated."""

    prompt_tokens: int
    output_tokens: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One row, already scaled. `at_s` counts from the trace's first row and is None where the file has no times.

    `blocks`: ids of the prompt's blocks of `Trace.block_tokens` tokens, the last one perhaps shorter; equal ids are
    equal tokens. `body`: a JSON object with the messages or the prompt that was sent, and how it was sampled; where it
    is given, `prompt_tokens` is what the log says, or an estimate. `later`: the further turns of a conversation.
    """

    at_s: float | None
    prompt_tokens: int
    output_tokens: int
    line: int
    blocks: tuple[int, ...] = ()
    body: str | None = None
    chat: bool = False
    streamed: bool = True
    n: int = 1
    later: tuple[LaterTurn, ...] = ()

    @property
    def longest_tokens(self) -> int:
        """Of its last turn, which carries everything before it."""
        later = sum(turn.prompt_tokens + turn.output_tokens for turn in self.later)
        return self.prompt_tokens + self.output_tokens + later


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """`rows` is never empty. `exact`: prompts are token ids, so their lengths are known and not estimated."""

    file: str
    format: str
    rows: tuple[TraceRequest, ...]
    block_tokens: int = 0
    exact: bool = True

    @property
    def longest_request_tokens(self) -> int:
        return max(row.longest_tokens for row in self.rows)

    @property
    def mean_output_tokens(self) -> float:
        return sum(row.output_tokens for row in self.rows) / len(self.rows)

    @property
    def has_times(self) -> bool:
        return self.rows[0].at_s is not None

    @property
    def mean_gap_s(self) -> float:
        """Between arrivals; 0 for a trace of one row, or one whose rows all came at once."""
        first, last = self.rows[0].at_s, self.rows[-1].at_s
        assert first is not None and last is not None
        return (last - first) / max(1, len(self.rows) - 1)


def windows_of(rows: Sequence[TraceRequest], *, count: int, windows: int, first_row: int) -> tuple[TraceRequest, ...]:
    """`count` rows as `windows` unbroken stretches, spread evenly over what follows `first_row`.

    Inside a stretch every gap between arrivals is the file's own, so that bursts stay bursts; drawing single rows at
    random would smooth them away. The stretches are joined with the mean gap of what was taken.
    """
    rest = rows[first_row:]
    count = min(count, len(rest))
    windows = max(1, min(windows, count))
    left_out = len(rest) - count
    taken: list[Sequence[TraceRequest]] = []
    start = 0
    for place in range(windows):
        size = count // windows + (1 if place < count % windows else 0)
        skipped = place * left_out // max(1, windows - 1)
        taken.append(rest[start + skipped : start + skipped + size])
        start += size
    if rest[0].at_s is None:
        return tuple(row for window in taken for row in window)
    spans = [(window[-1].at_s or 0.0) - (window[0].at_s or 0.0) for window in taken]
    gap_s = sum(spans) / max(1, count - windows)
    joined: list[TraceRequest] = []
    began_s = 0.0
    for window, span_s in zip(taken, spans, strict=True):
        first_s = window[0].at_s or 0.0
        joined += [replace(row, at_s=began_s + (row.at_s or 0.0) - first_s) for row in window]
        began_s += span_s + gap_s
    return tuple(joined)
