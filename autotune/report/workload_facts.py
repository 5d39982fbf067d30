"""What a workload amounts to: rates, lengths, what a prefix cache could find, and what keeps it from finding more."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autotune.load.prefixes import PrefixCache, SpoiledPrefix, spoiled_prefix
from autotune.load.statistics import percentile
from autotune.load.traffic import PlannedRequest, plan, text_of
from autotune.report.numbers import number
from autotune.spec.backlog import backlog
from autotune.spec.workload import (
    ClosedLoop,
    ConstantArrivals,
    GammaArrivals,
    GoodputSearch,
    Poisson,
    RampArrivals,
    Rung,
    TraceArrivals,
    Workload,
)

_MOST_REQUESTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Nearest-rank percentiles, in tokens."""

    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: list[int]) -> Spread:
        return cls(
            p50=percentile(values, 0.5), p90=percentile(values, 0.9), p99=percentile(values, 0.99), max=max(values)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RungFacts:
    """Of the requests that the rung sends with seed 0, at most 20,000.

    `rate_rps` and `gap_cv` (the gaps' standard deviation by their mean: 1 is Poisson) are None in a closed loop.
    `prefix_hit_share`: prompt tokens that a prefix cache would know if it began empty and never forgot.
    """

    name: str
    arrivals: str
    requests: int
    sequences: int
    rate_rps: float | None
    gap_cv: float | None
    prompt_tokens: Spread
    output_tokens: Spread
    prefix_hit_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """`exact`: prompts are token ids; otherwise their lengths are estimates. `max_model_len`: what `from-workload`
    gives."""

    longest_request_tokens: int
    max_model_len: int
    exact: bool
    rungs: tuple[RungFacts, ...]
    goodput_search: GoodputSearch | None
    warnings: tuple[str, ...]


def workload_facts(workload: Workload, *, block_tokens: int) -> WorkloadFacts:
    """`block_tokens`: the engine's block size, as prefix hits are whole blocks."""
    return WorkloadFacts(
        longest_request_tokens=workload.longest_request_tokens,
        max_model_len=workload.model_length,
        exact=workload.exact,
        rungs=tuple(_rung(workload, rung, block_tokens) for rung in workload.rungs),
        goodput_search=workload.goodput_search,
        warnings=tuple(_warnings(workload)),
    )


def workload_form(facts: WorkloadFacts) -> dict[str, Any]:
    return {
        "longest_request_tokens": facts.longest_request_tokens,
        "max_model_len": facts.max_model_len,
        "exact": facts.exact,
        "rungs": [
            {
                "name": rung.name,
                "arrivals": rung.arrivals,
                "requests": rung.requests,
                "sequences": rung.sequences,
                "rate_rps": rung.rate_rps,
                "gap_cv": rung.gap_cv,
                **{
                    f"{what}_tokens_{name}": getattr(spread, name)
                    for what, spread in (("prompt", rung.prompt_tokens), ("output", rung.output_tokens))
                    for name in ("p50", "p90", "p99", "max")
                },
                "prefix_hit_share": rung.prefix_hit_share,
            }
            for rung in facts.rungs
        ],
        "goodput_search": _goodput_form(facts.goodput_search) if facts.goodput_search else None,
        "warnings": list(facts.warnings),
    }


def _goodput_form(search: GoodputSearch) -> dict[str, Any]:
    return {
        "requests": search.requests,
        "duration_s": search.duration_s,
        "start_rps": search.start_rps,
        "precision": search.precision,
        "rungs": search.most_rungs,
    }


def shown_arrivals(rung: Rung) -> str:
    match rung.arrivals:
        case ClosedLoop() if rung.at_once:
            return f"all {number(rung.requests)} at once"
        case ClosedLoop(concurrency=concurrency):
            return f"{concurrency} clients"
        case Poisson(rate_rps=rate):
            return f"Poisson, {number(rate)} /s"
        case GammaArrivals(rate_rps=rate, burstiness=burstiness):
            return f"gamma, {number(rate)} /s, burstiness {number(burstiness)}"
        case ConstantArrivals(rate_rps=rate):
            return f"constant, {number(rate)} /s"
        case RampArrivals(from_rps=first, to_rps=last):
            return f"ramp, {number(first)} to {number(last)} /s"
        case TraceArrivals(rate_scale=scale):
            return f"trace, {number(scale)} times its rate"


def _rung(workload: Workload, rung: Rung, block_tokens: int) -> RungFacts:
    requests = list(_requests(workload, rung))
    cache = PrefixCache(block_tokens=block_tokens)
    known = sum(cache.admit(request.pieces()) for request in requests)
    due_s = [request.scheduled_s for request in requests if request.scheduled_s is not None]
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(due_s)]
    mean_s = sum(gaps_s) / len(gaps_s) if gaps_s else 0.0
    return RungFacts(
        name=rung.name,
        arrivals=shown_arrivals(rung),
        requests=len(requests),
        sequences=sum(request.n for request in requests),
        rate_rps=1 / mean_s if mean_s > 0 else None,
        gap_cv=statistics.pstdev(gaps_s) / mean_s if mean_s > 0 else None,
        prompt_tokens=Spread.of([request.prompt_tokens for request in requests]),
        output_tokens=Spread.of([request.output_tokens for request in requests]),
        prefix_hit_share=known / sum(request.prompt_tokens for request in requests),
    )


def _requests(workload: Workload, rung: Rung) -> Iterator[PlannedRequest]:
    """Those it sends before its duration is over; a closed loop's number is the engine's to say beyond `requests`.

    Each conversation is taken to its end before the next begins.
    """
    taken = 0
    for planned in plan(workload, rung, seed=0):
        late = planned.scheduled_s is None or planned.scheduled_s >= rung.duration_s
        following: PlannedRequest | None = planned
        while following is not None:
            if (taken >= rung.requests and late) or taken >= _MOST_REQUESTS:
                return
            yield following
            taken += 1
            following = following.followed_by(None)


def _warnings(workload: Workload) -> Iterator[str]:
    for rung in workload.rungs:
        if rung.name in workload.reference_rungs and (why := backlog(rung)) is not None:
            yield (
                f"rung {rung.name} {why}: its ttft and e2e measure how long the backlog takes (saturated), not what a "
                "user waits. Give it a rate if a latency is to be judged by it"
            )
    trace = workload.trace
    if trace is None:
        return
    for rung in workload.rungs:
        if rung.requests > len(trace.rows):
            times = math.ceil(rung.requests / len(trace.rows))
            yield (
                f"rung {rung.name} sends {rung.requests} requests and the trace has {len(trace.rows)}: it is gone "
                f"through {times} times, with prompts that are new to the cache each time"
            )
    requests = list(itertools.islice(plan(workload, workload.rungs[0], seed=0), min(200, len(trace.rows))))
    spoiled = spoiled_prefix([request.opening_text() for request in requests if request.body is not None])
    if spoiled is not None:
        yield _told(spoiled, requests[0])


def _told(spoiled: SpoiledPrefix, request: PlannedRequest) -> str:
    one, other = (json.dumps(variant, ensure_ascii=False) for variant in spoiled.variants)
    before = json.dumps(spoiled.before, ensure_ascii=False)
    return (
        f"prompts differ early and are alike again after it, so a prefix cache can't use what they have in common: in "
        f"{100 * spoiled.share:.0f} % of those looked at, first at {_place(spoiled.position, request)}, after {before} "
        f"({one} or {other}). Put what changes, such as a date or an id, at the end of the prompt"
    )


def _place(position: int, request: PlannedRequest) -> str:
    """The character of `opening_text` in words of the request: its message and the character there, from 0."""
    assert request.body is not None
    messages = json.loads(request.body).get("messages")
    if messages is None:
        return f"character {position} of the prompt"
    for place, message in enumerate(messages):
        head = f"<{message['role']}>\n"
        length = len(head) + len(text_of(message)) + 1
        if position < length:
            return f"character {max(0, position - len(head))} of message {place} ({message['role']})"
        position -= length
    return "the end of the messages"
