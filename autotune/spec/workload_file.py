"""Workload files: YAML into a `Workload`. The format is described in docs/workloads.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from autotune.errors import UserError
from autotune.spec.goodput_file import GoodputText, read_goodput_search
from autotune.spec.rung_file import RungText, read_rung
from autotune.spec.schema import validated
from autotune.spec.shape_file import ShapeText, Strict, TraceText, read_shape, read_trace
from autotune.spec.trace import Trace
from autotune.spec.workload import GOODPUT_RUNGS, STRESS, RequestShape, Workload
from autotune.spec.yaml_text import parse_yaml


class _Workload(Strict):
    name: Annotated[str, Field(min_length=1)]
    requests: ShapeText | None = None
    mix: Annotated[list[ShapeText], Field(min_length=1)] | None = None
    trace: TraceText | None = None
    rungs: Annotated[list[RungText], Field(min_length=1)]
    reference_rungs: Annotated[list[str], Field(min_length=1)] | None = None
    warm_up: Annotated[int, Field(ge=0)] = 8
    goodput_search: GoodputText | None = None


def load_workload(path: Path) -> Workload:
    """Raises UserError naming file, line, key, value and remedy."""
    return parse_workload(read_text(path, what="workload"), file=path)


def read_text(path: Path, *, what: str) -> str:
    """The file as text. Raises UserError when it can't be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(
            f"there is no such {what} file", file=path, remedy=f"`vtune {what}s` lists the shipped ones"
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"this {what} file isn't UTF-8 text", file=path, remedy="save it as UTF-8") from None
    except OSError as error:
        raise UserError(
            f"this {what} file can't be read: {error.strerror}", file=path, remedy="check the path and its permissions"
        ) from error


def parse_workload(text: str, *, file: object) -> Workload:
    """`file` is what errors call it, and where the relative path of a trace starts."""
    document = parse_yaml(text, file=file)
    given = validated(_Workload, document)
    sources = [key for key in ("requests", "mix", "trace") if getattr(given, key) is not None]
    if len(sources) != 1:
        raise document.error(
            "a workload has `requests` (one shape), `mix` (several, each with a share) or `trace` (a file)",
            sources[-1] if sources else "requests",
            remedy="give exactly one of them",
        )
    shapes: list[RequestShape] = []
    trace: Trace | None = None
    if given.trace is not None:
        trace = read_trace(given.trace, document, ("trace",))
    elif given.requests is not None:
        shapes = [read_shape(given.requests, document, ("requests",))]
    else:
        shapes = [read_shape(shape, document, ("mix", place)) for place, shape in enumerate(given.mix or [])]
    rungs = tuple(read_rung(rung, document, place, trace=trace) for place, rung in enumerate(given.rungs))
    names = [rung.name for rung in rungs]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise document.error(
                "two rungs have the same name", "rungs", place, "name", value=name, remedy="rename one"
            )
        if given.goodput_search and name.startswith(GOODPUT_RUNGS):
            raise document.error(
                "the rungs of the goodput search are called so", "rungs", place, "name", value=name, remedy="rename it"
            )
        if name == STRESS:
            raise document.error(
                "this name is kept for the stress of the confirmation (docs/measurement.md)",
                "rungs",
                place,
                "name",
                value=name,
                remedy="rename it",
            )
    reference = tuple(given.reference_rungs or names)
    for place, name in enumerate(reference):
        if name not in names:
            raise document.error(
                "there is no such rung",
                "reference_rungs",
                place,
                value=name,
                remedy=f"name one of {', '.join(names)}",
            )
        if name in reference[:place]:
            raise document.error("this rung is named twice", "reference_rungs", place, value=name, remedy="remove one")
    return Workload(
        name=given.name,
        shapes=tuple(shapes),
        rungs=rungs,
        reference_rungs=reference,
        warm_up_requests=given.warm_up,
        trace=trace,
        goodput_search=read_goodput_search(given.goodput_search, document) if given.goodput_search else None,
    )
