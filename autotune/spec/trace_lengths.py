"""Traces of times and lengths without texts: Azure's CSV, Mooncake's JSONL with the ids of its prompts' blocks."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from autotune.errors import UserError
from autotune.spec.trace import TraceRequest

MOONCAKE_BLOCK_TOKENS = 512
"""Of one hash id (github.com/kvcache-ai/Mooncake, FAST25-release)."""

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def azure_rows(text: str, *, file: Path) -> list[TraceRequest]:
    """github.com/Azure/AzurePublicDataset, LLM inference traces of 2023 and 2024."""
    table = csv.reader(io.StringIO(text))
    header = next(table, [])
    missing = [name for name in _AZURE_COLUMNS if name not in header]
    if missing:
        raise UserError(
            f"an Azure trace has the columns {', '.join(_AZURE_COLUMNS)}",
            file=f"{file}:1",
            key=missing[0],
            value=",".join(header)[:80],
            remedy="put this line first, or say which other format it is",
        )
    at, context, generated = (header.index(name) for name in _AZURE_COLUMNS)
    rows: list[TraceRequest] = []
    first: datetime | None = None
    for cells in table:
        if not cells:
            continue
        line = table.line_num
        if len(cells) < len(header):
            raise UserError(
                f"this row has {len(cells)} cells instead of {len(header)}",
                file=f"{file}:{line}",
                value=",".join(cells)[:80],
                remedy="complete or remove it",
            )
        time = _time(cells[at], file, line)
        first = first or time
        rows.append(
            TraceRequest(
                at_s=(time - first).total_seconds(),
                prompt_tokens=_tokens(cells[context], file, line, "ContextTokens"),
                output_tokens=_tokens(cells[generated], file, line, "GeneratedTokens"),
                line=line,
            )
        )
    return rows


def mooncake_rows(
    objects: Iterable[tuple[int, dict[str, object]]], *, file: Path, block_tokens: int
) -> Iterator[TraceRequest]:
    """Prompts become as many blocks as they had, of `block_tokens` tokens each; the last one keeps its share."""
    for line, row in objects:
        timestamp = row.get("timestamp")
        if isinstance(timestamp, bool) or not isinstance(timestamp, int | float) or not math.isfinite(timestamp):
            raise _no_value(file, line, "timestamp", timestamp, "milliseconds since the trace began")
        length = _tokens(row.get("input_length"), file, line, "input_length")
        ids = row.get("hash_ids")
        if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
            raise _no_value(file, line, "hash_ids", ids, "the list of the prompt's block ids")
        blocks = math.ceil(length / MOONCAKE_BLOCK_TOKENS)
        if len(ids) != blocks:
            raise UserError(
                f"a prompt of {length} tokens has {blocks} blocks of {MOONCAKE_BLOCK_TOKENS}",
                file=f"{file}:{line}",
                key="hash_ids",
                value=f"{len(ids)} ids",
                remedy="give one id per block",
            )
        rest = length - (blocks - 1) * MOONCAKE_BLOCK_TOKENS
        yield TraceRequest(
            at_s=timestamp / 1e3,
            prompt_tokens=(blocks - 1) * block_tokens + max(1, round(rest * block_tokens / MOONCAKE_BLOCK_TOKENS)),
            output_tokens=_tokens(row.get("output_length"), file, line, "output_length"),
            line=line,
            blocks=tuple(ids),
        )


def _time(text: str, file: Path, line: int) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise _no_value(file, line, "TIMESTAMP", text, "a time such as 2023-11-16 18:17:03.9799600") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _tokens(given: object, file: Path, line: int, key: str) -> int:
    try:
        found = int(given) if isinstance(given, str | int) and not isinstance(given, bool) else 0
    except ValueError:
        found = 0
    if found < 1:
        raise _no_value(file, line, key, given, "a whole number of tokens, 1 or more")
    return found


def _no_value(file: Path, line: int, key: str, given: object, wanted: str) -> UserError:
    shown = given if given is None or isinstance(given, str | int | float) else str(given)[:80]
    problem = f"this must be {wanted}" if given is not None else "this key is missing"
    return UserError(problem, file=f"{file}:{line}", key=key, value=shown, remedy=f"give {wanted}, or remove the row")
