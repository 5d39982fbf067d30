"""The `goodput_search` section of a workload file: how the highest rate within the SLOs is looked for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from autotune.spec import units
from autotune.spec.rung_file import quantity, read_rate
from autotune.spec.shape_file import Strict
from autotune.spec.workload import ConstantArrivals, GammaArrivals, GoodputSearch, Poisson
from autotune.spec.yaml_text import Document

_SECTION = "goodput_search"
_WIDEST, _NARROWEST = 0.5, 0.01


class GoodputText(Strict):
    requests: Annotated[int, Field(ge=20)] = 100
    duration: Any = None
    start: Any = None
    precision: Any = None
    rungs: Annotated[int, Field(ge=4, le=40)] = 12
    arrivals: Literal["poisson", "gamma", "constant"] = "poisson"
    burstiness: Annotated[float, Field(gt=0, le=1000)] | None = None


def read_goodput_search(given: GoodputText, document: Document) -> GoodputSearch:
    """Raises UserError naming file, line, key, value and remedy."""
    if (given.burstiness is None) == (given.arrivals == "gamma"):
        raise document.error(
            "gamma arrivals need their burstiness, and only they have one",
            _SECTION,
            "burstiness",
            value=given.burstiness,
            remedy="add burstiness: 0.5 or so"
            if given.burstiness is None
            else "leave it out, or write arrivals: gamma",
        )
    precision = (
        0.1 if given.precision is None else quantity(units.share, given.precision, document, (_SECTION, "precision"))
    )
    if not _NARROWEST <= precision <= _WIDEST:
        raise document.error(
            f"a precision is from {_NARROWEST:.0%} to {_WIDEST:.0%} of the rate",
            _SECTION,
            "precision",
            value=given.precision,
            remedy="write 10 % or so: noise between runs hides finer differences",
        )
    start = None if given.start is None else read_rate(given.start, document, (_SECTION, "start"))
    arrivals: Poisson | GammaArrivals | ConstantArrivals
    match given.arrivals:
        case "gamma":
            arrivals = GammaArrivals(rate_rps=1.0, burstiness=given.burstiness or 1.0)
        case "constant":
            arrivals = ConstantArrivals(rate_rps=1.0)
        case _:
            arrivals = Poisson(rate_rps=1.0)
    return GoodputSearch(
        arrivals=arrivals,
        requests=given.requests,
        duration_s=0.0
        if given.duration is None
        else quantity(units.duration_s, given.duration, document, (_SECTION, "duration")),
        start_rps=start,
        precision=precision,
        most_rungs=given.rungs,
    )
