"""Answers on stdout (text or one JSON object), everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.report.evidence import harmless, one_line

SCHEMA_VERSION = 1
"""Of the JSON answers (docs/cli.md). A new key doesn't raise it; a renamed or removed one does."""


def stdout() -> Console:
    return _console(stderr=False)


def stderr() -> Console:
    return _console(stderr=True)


def answer(content: Mapping[str, Any]) -> None:
    """Prints the one JSON object of a `--json` command. Raises ValueError on NaN and infinity: JSON has neither."""
    sys.stdout.write(json.dumps({"schema_version": SCHEMA_VERSION, **content}, indent=2, allow_nan=False) + "\n")


def say(console: Console, text: str = "", *, style: str = "") -> None:
    """Prints `text` as it is: no markup in it is obeyed. A terminal folds long lines between words, a pipe nowhere."""
    console.print(Text(harmless(text), style=style), soft_wrap=not console.is_terminal)


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[int] = (),
    cell_limit: int = 600,
    fold: bool = True,
) -> Table:
    """`right`: the columns (from 0) whose cells are numbers. Cells are shown as they are, cut at `cell_limit`; with
    `fold` False the last column is cut at the screen's edge, so that each row is one line."""
    made = Table(title=Text(title, style="bold"), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    last = len(columns) - 1
    for index, column in enumerate(columns):
        made.add_column(
            Text(column, style="dim"),
            justify="right" if index in right else "left",
            overflow="fold",
            no_wrap=not fold and index < last,
        )
    for row in rows:
        cells = [Text(one_line(cell, cell_limit)) for cell in row]
        if not fold:
            cells[-1].no_wrap, cells[-1].overflow = True, "ellipsis"
        made.add_row(*cells)
    return made


def show(console: Console, made: Table) -> None:
    """Prints a table; in a pipe without the spaces that fill its lines."""
    if console.is_terminal:
        console.print(made)
        return
    with console.capture() as captured:
        console.print(made)
    for line in captured.get().splitlines():
        console.file.write(line.rstrip() + "\n")


def _console(*, stderr: bool) -> Console:
    """A pipe has no width: lines stay whole there."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 220, highlight=False)
