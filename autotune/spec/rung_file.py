"""The rungs of a workload file: how requests arrive and how long it lasts."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from autotune.spec import units
from autotune.spec.shape_file import Strict
from autotune.spec.trace import Trace
from autotune.spec.workload import (
    Arrivals,
    ClosedLoop,
    ConstantArrivals,
    GammaArrivals,
    Poisson,
    RampArrivals,
    Rung,
    TraceArrivals,
)
from autotune.spec.yaml_text import Document, Where

_ENDLESS = re.compile(r"\+?\.?inf(inity)?( */s)?", re.IGNORECASE)


class RungText(Strict):
    name: Annotated[str, Field(min_length=1)]
    concurrency: Annotated[int, Field(ge=1)] | None = None
    rate: Any = None
    arrivals: Literal["poisson", "gamma", "constant", "trace"] | None = None
    burstiness: Annotated[float, Field(gt=0, le=1000)] | None = None
    rate_scale: Annotated[float, Field(gt=0, le=1e6)] | None = None
    requests: int | None = None
    duration: Any = None


def read_rung(given: RungText, document: Document, place: int, *, trace: Trace | None) -> Rung:
    where: Where = ("rungs", place)
    arrivals = _arrivals(given, document, where, trace)
    requests = given.requests
    if requests is None and given.duration is None and isinstance(arrivals, TraceArrivals) and trace is not None:
        requests = len(trace.rows)
    if requests is None and given.duration is None:
        raise document.error(
            "a rung needs `requests`, `duration` or both: how long its load lasts",
            *where,
            value=given.name,
            remedy="add for example requests: 200",
        )
    if requests is not None and requests < 1:
        raise document.error(
            "a rung must send at least one request",
            *where,
            "requests",
            value=requests,
            remedy="write at least 100, so that a p99 means something",
        )
    return Rung(
        name=given.name, arrivals=arrivals, requests=requests or 1, duration_s=_duration_s(given, document, where)
    )


def _arrivals(given: RungText, document: Document, where: Where, trace: Trace | None) -> Arrivals:
    if given.arrivals == "trace":
        return _trace_arrivals(given, document, where, trace)
    if (given.concurrency is None) == (given.rate is None):
        raise document.error(
            "a rung has either a `concurrency` (closed loop) or a `rate` (open loop)",
            *where,
            value=given.name,
            remedy="give exactly one of them, such as concurrency: 32 or rate: 4 /s"
            + (", or arrivals: trace" if trace is not None and trace.has_times else ""),
        )
    _refuse(given, document, where, "rate_scale", unless=False, only="arrivals: trace")
    _refuse(given, document, where, "burstiness", unless=given.arrivals == "gamma", only="arrivals: gamma")
    if given.concurrency is not None:
        _refuse(given, document, where, "arrivals", unless=False, only="a rate")
        return ClosedLoop(concurrency=given.concurrency)
    if _ENDLESS.fullmatch(str(given.rate).strip()):
        return _all_at_once(given, document, where)
    if isinstance(given.rate, list):
        return _ramp(given, document, where)
    rate = read_rate(given.rate, document, (*where, "rate"))
    match given.arrivals:
        case "constant":
            return ConstantArrivals(rate_rps=rate)
        case "gamma":
            if given.burstiness is None:
                raise document.error(
                    "gamma arrivals need their burstiness", *where, "arrivals", remedy="add burstiness: 0.5 or so"
                )
            return GammaArrivals(rate_rps=rate, burstiness=given.burstiness)
        case _:
            return Poisson(rate_rps=rate)


def _all_at_once(given: RungText, document: Document, where: Where) -> ClosedLoop:
    """What `vllm bench serve --request-rate inf` sends: a client for each request, none of which sends another."""
    for key in ("arrivals", "burstiness", "duration"):
        _refuse(given, document, where, key, unless=False, only="a finite rate")
    if given.requests is None:
        raise document.error(
            "at this rate all requests are sent at once, so it must be said how many they are",
            *where,
            "rate",
            value=given.rate,
            remedy="add for example requests: 1000",
        )
    return ClosedLoop(concurrency=given.requests)


def _trace_arrivals(given: RungText, document: Document, where: Where, trace: Trace | None) -> TraceArrivals:
    for key in ("concurrency", "rate", "burstiness"):
        _refuse(given, document, where, key, unless=False, only="arrivals without a trace's timestamps")
    if trace is None or not trace.has_times:
        what = "this workload has no trace" if trace is None else f"{trace.file} has no times"
        raise document.error(
            what,
            *where,
            "arrivals",
            value="trace",
            remedy="give a rate, such as rate: 4 /s" + (", or add `trace:`" if trace is None else ""),
        )
    if trace.mean_gap_s == 0:
        raise document.error(
            f"the rows taken of {trace.file} all came at once",
            *where,
            "arrivals",
            value="trace",
            remedy="take more rows, or give a rate",
        )
    return TraceArrivals(rate_scale=given.rate_scale or 1.0)


def _ramp(given: RungText, document: Document, where: Where) -> RampArrivals:
    _refuse(given, document, where, "arrivals", unless=given.arrivals == "poisson", only="a single rate")
    if len(given.rate) != 2:
        raise document.error(
            "a ramp goes from one rate to another", *where, "rate", value=given.rate, remedy="write [1 /s, 8 /s]"
        )
    first, last = (read_rate(rate, document, (*where, "rate", end)) for end, rate in enumerate(given.rate))
    over_s = _duration_s(given, document, where)
    if over_s <= 0:
        raise document.error(
            "a ramp needs the duration in which it gets from one rate to the other",
            *where,
            "rate",
            value=given.rate,
            remedy="add duration: 60 s or so",
        )
    return RampArrivals(from_rps=first, to_rps=last, over_s=over_s)


def _refuse(given: RungText, document: Document, where: Where, key: str, *, unless: bool, only: str) -> None:
    value = getattr(given, key)
    if value is not None and not unless:
        raise document.error(f"`{key}` goes with {only} only", *where, key, value=value, remedy="leave it out")


def read_rate(given: object, document: Document, where: Where) -> float:
    """Requests per second. Raises UserError."""
    rate = quantity(units.rate_per_s, given, document, where)
    if rate <= 0:
        raise document.error("a rate must be above 0", *where, value=given, remedy="write 4 /s or so")
    return rate


def _duration_s(given: RungText, document: Document, where: Where) -> float:
    if given.duration is None:
        return 0.0
    return quantity(units.duration_s, given.duration, document, (*where, "duration"))


def quantity(parse: Any, given: object, document: Document, where: Where) -> float:
    """`parse` (of `spec.units`) with its complaint put as a UserError."""
    try:
        return float(parse(given))
    except ValueError as problem:
        raise document.error(str(problem), *where, value=given, remedy="give number and unit in one text") from problem
