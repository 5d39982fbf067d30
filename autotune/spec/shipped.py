"""The spaces and workloads that come with vtune, in a checkout and in an installed wheel alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import autotune
from autotune.errors import UserError
from autotune.spec.flag import nearest

Sort = Literal["space", "workload"]

_PACKAGE = Path(autotune.__file__).resolve().parent
_FOLDERS: Mapping[Sort, str] = {"space": "search_spaces", "workload": "workloads"}
_WORKLOAD_LINE = re.compile(r"^workload:[ \t]*([\w.-]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """`summary` is the first line of the file's opening comment."""

    name: str
    path: Path
    summary: str


def shipped_spaces() -> tuple[Shipped, ...]:
    return _shipped("space")


def shipped_workloads() -> tuple[Shipped, ...]:
    return _shipped("workload")


def resolve_space(given: str | Path) -> Path:
    """A path to an existing file, or the name of a shipped space. Raises UserError with the nearest name."""
    return _resolve("space", str(given), Path())


def resolve_workload(given: str | Path, *, beside: Path | None = None) -> Path:
    """The same for workloads; a relative path is looked up from the folder `beside` (default: the current one)."""
    return _resolve("workload", str(given), beside or Path())


def starter_files(name: str) -> dict[str, str]:
    """What `vtune init NAME` writes: relative path -> text. The space points at the copy of its workload."""
    space = next((one for one in shipped_spaces() if one.name == name), None)
    if space is None:
        raise _unknown("space", name)
    text = space.path.read_text(encoding="utf-8")
    match = _WORKLOAD_LINE.search(text)
    assert match is not None, f"{space.path} names no workload"
    workload = _resolve("workload", match.group(1), space.path.parent)
    pointed = f"{text[: match.start(1)]}../workloads/{workload.name}{text[match.end(1) :]}"
    return {f"spaces/{name}.yaml": pointed, f"workloads/{workload.name}": workload.read_text(encoding="utf-8")}


def _folder(sort: Sort) -> Path:
    """autotune/shipped/... in a wheel; the repository's own folder in a checkout."""
    packed = _PACKAGE / "shipped" / _FOLDERS[sort]
    return packed if packed.is_dir() else _PACKAGE.parent / _FOLDERS[sort]


def _shipped(sort: Sort) -> tuple[Shipped, ...]:
    return tuple(
        Shipped(name=path.stem, path=path, summary=_summary(path)) for path in sorted(_folder(sort).glob("*.yaml"))
    )


def _summary(path: Path) -> str:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").rstrip() if first.startswith("#") else ""


def _resolve(sort: Sort, given: str, beside: Path) -> Path:
    as_path = Path(given).expanduser()
    found = as_path if as_path.is_absolute() else beside / as_path
    if found.is_file():
        return found
    if "/" in given or found.suffix in (".yaml", ".yml"):
        raise UserError(
            f"there is no such {sort} file", file=found, remedy=f"`vtune {sort}s` lists the shipped ones by name"
        )
    shipped = next((one.path for one in _shipped(sort) if one.name == given), None)
    if shipped is None:
        raise _unknown(sort, given)
    return shipped


def _unknown(sort: Sort, name: str) -> UserError:
    names = [one.name for one in _shipped(sort)]
    near = nearest(name, names)
    hint = f"did you mean {near}? " if near else ""
    return UserError(
        f"there is no shipped {sort} of this name",
        key=sort,
        value=name,
        remedy=f"{hint}There are {', '.join(names)}; or give the path of a file",
    )
