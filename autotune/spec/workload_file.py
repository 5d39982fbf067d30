"""Workload files: YAML into a `Workload`. The format is described in docs/workloads.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from autotune.errors import UserError
from autotune.spec import units
from autotune.spec.schema import validated
from autotune.spec.workload import (
    Arrivals,
    ClosedLoop,
    FixedLength,
    Lengths,
    LogNormalLength,
    Poisson,
    RequestShape,
    Rung,
    SharedPrefix,
    UniformLength,
    Workload,
)
from autotune.spec.yaml_text import Document, Where, parse_yaml

_MOST_TOKENS = 100_000_000

Tokens = Annotated[int, Field(ge=1, le=_MOST_TOKENS)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _LogNormal(_Strict):
    median: Annotated[float, Field(ge=1)]
    sigma: Annotated[float, Field(gt=0, le=5)]
    min: Tokens = 1
    max: Tokens


class _Prefix(_Strict):
    tokens: Tokens
    groups: Annotated[int, Field(ge=1)] = 1


class _Shape(_Strict):
    prompt_tokens: Any
    output_tokens: Any
    shared_prefix: _Prefix | None = None
    n: Annotated[int, Field(ge=1, le=1024)] = 1
    share: Annotated[float, Field(gt=0)] = 1.0


class _Rung(_Strict):
    name: Annotated[str, Field(min_length=1)]
    concurrency: Annotated[int, Field(ge=1)] | None = None
    rate: Any = None
    requests: int | None = None
    duration: Any = None


class _Workload(_Strict):
    name: Annotated[str, Field(min_length=1)]
    requests: _Shape | None = None
    mix: Annotated[list[_Shape], Field(min_length=1)] | None = None
    rungs: Annotated[list[_Rung], Field(min_length=1)]
    reference_rungs: Annotated[list[str], Field(min_length=1)] | None = None
    warm_up: Annotated[int, Field(ge=0)] = 8


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
    document = parse_yaml(text, file=file)
    given = validated(_Workload, document)
    if (given.requests is None) == (given.mix is None):
        raise document.error(
            "a workload has either `requests` (one shape) or `mix` (several, each with a share)",
            "mix" if given.mix is not None else "requests",
            remedy="give exactly one of them",
        )
    if given.requests is not None:
        shapes = [_shape(given.requests, document, ("requests",))]
    else:
        shapes = [_shape(shape, document, ("mix", place)) for place, shape in enumerate(given.mix or [])]
    rungs = tuple(_rung(rung, document, place) for place, rung in enumerate(given.rungs))
    names = [rung.name for rung in rungs]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise document.error(
                "two rungs have the same name", "rungs", place, "name", value=name, remedy="rename one"
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
        name=given.name, shapes=tuple(shapes), rungs=rungs, reference_rungs=reference, warm_up_requests=given.warm_up
    )


def _shape(given: _Shape, document: Document, where: Where) -> RequestShape:
    return RequestShape(
        prompt=_lengths(given.prompt_tokens, document, (*where, "prompt_tokens")),
        output=_lengths(given.output_tokens, document, (*where, "output_tokens")),
        prefix=SharedPrefix(tokens=given.shared_prefix.tokens, groups=given.shared_prefix.groups)
        if given.shared_prefix
        else None,
        n=given.n,
        share=given.share,
    )


def _lengths(given: object, document: Document, where: Where) -> Lengths:
    if isinstance(given, int) and not isinstance(given, bool):
        if not 1 <= given <= _MOST_TOKENS:
            raise document.error("a length is at least 1 token", *where, value=given, remedy="write 1 or more")
        return FixedLength(tokens=given)
    match given:
        case {"uniform": [int(low), int(high)], **rest} if not rest:
            if not 1 <= low <= high <= _MOST_TOKENS:
                raise document.error(
                    "uniform is [least, greatest] in tokens, from 1 up",
                    *where,
                    "uniform",
                    value=[low, high],
                    remedy=f"write [{min(low, high)}, {max(low, high)}]" if min(low, high) >= 1 else "begin at 1",
                )
            return UniformLength(low=low, high=high)
        case {"lognormal": dict(), **rest} if not rest:
            spec = validated(_LogNormal, document, (*where, "lognormal"))
            if not spec.min <= spec.median <= spec.max:
                raise document.error(
                    "a log-normal length needs min <= median <= max",
                    *where,
                    "lognormal",
                    value=f"min {spec.min}, median {spec.median:g}, max {spec.max}",
                    remedy="widen min and max, they clip the distribution",
                )
            return LogNormalLength(median=spec.median, sigma=spec.sigma, low=spec.min, high=spec.max)
        case _:
            raise document.error(
                "this is no length in tokens",
                *where,
                value=given,
                remedy="write a number, {uniform: [64, 512]} or {lognormal: {median: 256, sigma: 0.8, max: 2048}}",
            )


def _rung(given: _Rung, document: Document, place: int) -> Rung:
    where: Where = ("rungs", place)
    if (given.concurrency is None) == (given.rate is None):
        raise document.error(
            "a rung has either a `concurrency` (closed loop) or a `rate` (Poisson arrivals)",
            *where,
            value=given.name,
            remedy="give exactly one of them, such as concurrency: 32 or rate: 4 /s",
        )
    arrivals: Arrivals
    if given.concurrency is not None:
        arrivals = ClosedLoop(concurrency=given.concurrency)
    else:
        rate = _quantity(units.rate_per_s, given.rate, document, (*where, "rate"))
        if rate <= 0:
            raise document.error("a rate must be above 0", *where, "rate", value=given.rate, remedy="write 4 /s or so")
        arrivals = Poisson(rate_rps=rate)
    if given.requests is None and given.duration is None:
        raise document.error(
            "a rung needs `requests`, `duration` or both: how long its load lasts",
            *where,
            value=given.name,
            remedy="add for example requests: 200",
        )
    if given.requests is not None and given.requests < 1:
        raise document.error(
            "a rung must send at least one request",
            *where,
            "requests",
            value=given.requests,
            remedy="write at least 100, so that a p99 means something",
        )
    seconds = 0.0
    if given.duration is not None:
        seconds = _quantity(units.duration_s, given.duration, document, (*where, "duration"))
    return Rung(name=given.name, arrivals=arrivals, requests=given.requests or 1, duration_s=seconds)


def _quantity(parse: Any, given: object, document: Document, where: Where) -> float:
    try:
        return float(parse(given))
    except ValueError as problem:
        raise document.error(str(problem), *where, value=given, remedy="give number and unit in one text") from problem
