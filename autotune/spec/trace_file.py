"""Trace files as they are published, into a `Trace`. docs/workloads.md describes the formats and where to get them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from autotune.errors import UserError
from autotune.spec import trace_conversations, trace_lengths
from autotune.spec.trace import Trace, TraceRequest, windows_of

Format = Literal["azure", "mooncake", "openai", "sharegpt"]
FORMATS: tuple[Format, ...] = get_args(Format)

_MOST_TEXT_BYTES = 64 * 2**20
"""The rows travel to every trial's load client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceChoice:
    """What to take of a file, and how. `rows` None: all. `block_tokens`: what a Mooncake block becomes."""

    format: Format | None = None
    rows: int | None = None
    first_row: int = 0
    windows: int = 1
    prompt_scale: float = 1.0
    output_scale: float = 1.0
    block_tokens: int = trace_lengths.MOONCAKE_BLOCK_TOKENS
    bytes_per_token: float = 3.0


def load_trace(path: Path, choice: TraceChoice) -> Trace:
    """Raises UserError naming the file and its line, the key, the value and a remedy."""
    text = _text(path)
    kind = choice.format or _guessed(path, text)
    rows = _rows(kind, text, path, choice)
    if not rows:
        raise UserError("this trace has no request", file=path, remedy=f"check that its format is {kind}")
    if choice.first_row >= len(rows):
        raise UserError(
            f"this trace has {len(rows)} rows, counted from 0",
            file=path,
            key="first_row",
            value=choice.first_row,
            remedy=f"begin at {len(rows) - 1} or before",
        )
    untimed = sum(row.at_s is None for row in rows)
    if untimed:  # a time here and there is no schedule
        rows = [replace(row, at_s=None) for row in rows]
    else:
        rows.sort(key=lambda row: row.at_s or 0.0)  # logs are often written in the order of the answers
    taken = windows_of(rows, count=choice.rows or len(rows), windows=choice.windows, first_row=choice.first_row)
    size = sum(len(row.body or "") + sum(len(turn.text) for turn in row.later) for row in taken)
    if size > _MOST_TEXT_BYTES:
        raise UserError(
            f"{len(taken)} rows have {size / 2**20:.0f} MiB of text, at most {_MOST_TEXT_BYTES // 2**20} can be sent",
            file=path,
            remedy=f"take fewer, such as rows: {max(1, len(taken) * _MOST_TEXT_BYTES // (2 * size))}",
        )
    return Trace(
        file=path.name,
        format=kind,
        rows=taken,
        block_tokens=choice.block_tokens if kind == "mooncake" else 0,
        exact=all(row.body is None for row in taken),
    )


def _rows(kind: Format, text: str, path: Path, choice: TraceChoice) -> list[TraceRequest]:
    match kind:
        case "azure":
            rows = trace_lengths.azure_rows(text, file=path)
        case "mooncake":
            found = trace_lengths.mooncake_rows(_objects(text, path), file=path, block_tokens=choice.block_tokens)
            rows = list(found)
        case "openai":
            rows = list(
                trace_conversations.openai_rows(_objects(text, path), file=path, per_token=choice.bytes_per_token)
            )
        case "sharegpt":
            rows = trace_conversations.sharegpt_rows(text, file=path, per_token=choice.bytes_per_token)
    if (choice.prompt_scale, choice.output_scale) == (1.0, 1.0):
        return rows
    prompt, output = _scaled(choice.prompt_scale), _scaled(choice.output_scale)
    return [
        replace(
            row,
            prompt_tokens=prompt(row.prompt_tokens),
            output_tokens=output(row.output_tokens),
            later=tuple(replace(turn, output_tokens=output(turn.output_tokens)) for turn in row.later),
        )
        for row in rows
    ]


def _scaled(by: float) -> Callable[[int], int]:
    return lambda tokens: max(1, round(tokens * by))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(
            "there is no such trace file", file=path, remedy="a relative path starts at the workload file's folder"
        ) from None
    except UnicodeDecodeError:
        raise UserError("this trace isn't UTF-8 text", file=path, remedy="unpack it, or save it as UTF-8") from None
    except OSError as error:
        raise UserError(
            f"this trace can't be read: {error.strerror}", file=path, remedy="check the path and its permissions"
        ) from error


def _guessed(path: Path, text: str) -> Format:
    start = text[:200_000].lstrip()
    if start.startswith("TIMESTAMP,"):
        return "azure"
    if start.startswith("["):
        return "sharegpt"
    if start.startswith("{"):
        return "mooncake" if '"hash_ids"' in start.partition("\n")[0] else "openai"
    raise UserError(
        "the format of this trace can't be told from its beginning",
        file=path,
        value=start[:40] or None,
        remedy=f"say format: {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
    )


def _objects(text: str, path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Line number and JSON object of every line that isn't blank."""
    lines: Iterable[str] = text.split("\n")  # splitlines would also cut at U+2028, which JSON texts may hold
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise UserError(
                f"this line isn't JSON: {error}", file=f"{path}:{number}", remedy="give one JSON object per line"
            ) from None
        if not isinstance(found, dict):
            raise UserError(
                "this line is no JSON object", file=f"{path}:{number}", value=line[:40], remedy="give one per line"
            )
        yield number, found
