"""`init`, `spaces`, `workloads`: what comes with vtune, and how to make it one's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.arguments import Json
from autotune.cli.output import answer, say, show, stdout, table
from autotune.errors import UserError

if TYPE_CHECKING:
    from autotune.spec.shipped import Shipped


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A shipped space (`vtune spaces` lists them).")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    json: Json = False,
) -> None:
    """Write a shipped space and its workload here, to be changed."""
    from autotune.spec.shipped import starter_files

    files = {Path(relative): text for relative, text in starter_files(name).items()}
    there = [path for path in files if path.exists() or path.is_symlink()]
    if there and not force:
        raise UserError(
            "this file is there already", file=there[0], remedy="use it, remove it, or overwrite it with --force"
        )
    for path, text in files.items():
        _write(path, text)
    space = next(path for path in files if path.parts[0] == "spaces")
    if json:
        answer({"space": str(space), "files": [str(path) for path in files]})
        return
    console = stdout()
    for path in files:
        say(console, f"Wrote {path}")
    say(console, f"Next:  vtune check --space {space}")
    say(console, f"       vtune search --space {space}")


def spaces(json: Json = False) -> None:
    """The spaces that come with vtune."""
    from autotune.spec.shipped import shipped_spaces

    _list("spaces", shipped_spaces(), json=json)


def workloads(json: Json = False) -> None:
    """The workloads that come with vtune."""
    from autotune.spec.shipped import shipped_workloads

    _list("workloads", shipped_workloads(), json=json)


def _list(kind: str, found: Sequence[Shipped], *, json: bool) -> None:
    if json:
        answer({kind: [{"name": one.name, "summary": one.summary, "file": str(one.path)} for one in found]})
        return
    console = stdout()
    show(console, table(f"Shipped {kind}", ["name", ""], [[one.name, one.summary] for one in found]))
    if kind == "spaces":
        say(console, "Make one yours: vtune init NAME. Use one as it is: vtune search --space NAME")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"can't be written: {error.strerror}",
            file=path,
            remedy="go to a folder that you may write to",
        ) from None
