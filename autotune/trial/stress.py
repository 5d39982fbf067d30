"""The load that ends a confirmation: more at once than the configuration is meant for, half of it as long as it gets.

A configuration that keeps its limits under the workload may still lie at the edge of memory: the workload need not have
reached the peak that its flags allow. This does, with a margin, so that a winner is known to survive it (pure).
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain, zip_longest

from autotune.spec.config import EngineConfig
from autotune.spec.trace import Trace
from autotune.spec.workload import STRESS, ClosedLoop, FixedLength, RequestShape, Rung, Workload, longest

MARGIN = 1.25
MOST_SEQUENCES = 1024
"""What is believed of a max-num-seqs: a larger one says "no limit", and no test could fill it."""

OPEN_LOOP_PEAK = 2.0
"""How far an open loop's bursts may go beyond what was seen running."""

FEWEST_AT_ONCE = 16
"""Where nothing says how many could be running."""

CHAT_SHARE = 0.9
"""Of the longest prompt, where words stand for tokens and a chat template adds its own: the whole could be too long."""

DRAIN_LIMIT_S = 600.0
"""A slow engine is no dead one: what is left after this is taken for stuck."""


def stressed(workload: Workload, config: EngineConfig, *, seen_running: float | None) -> Workload:
    """A workload whose one rung, `STRESS`, is a closed loop of `concurrency`, twice as many requests as that: half of
    them as the workload has them, half of its longest prompt and answer.

    `seen_running`: the most sequences that ran at once under the workload. Of a trace, the longest rows and others in
    turn, as they are: a conversation in it is as long as its last turn only when it gets there.
    """
    at_once = concurrency(workload, config, seen_running=seen_running)
    rung = Rung(
        name=STRESS, arrivals=ClosedLoop(concurrency=at_once), requests=2 * at_once, drain_limit_s=DRAIN_LIMIT_S
    )
    return replace(
        workload,
        shapes=(*workload.shapes, longest_shape(workload)) if workload.shapes else (),
        trace=None if workload.trace is None else _longest_first(workload.trace, at_once),
        rungs=(rung,),
        reference_rungs=(STRESS,),
        warm_up_requests=0,
        goodput_search=None,
    )


def concurrency(workload: Workload, config: EngineConfig, *, seen_running: float | None) -> int:
    """The peak that the flags and the workload allow, `MARGIN` above it."""
    peaks: list[float] = [rung.arrivals.concurrency for rung in workload.rungs if isinstance(rung.arrivals, ClosedLoop)]
    limit = config.flags.get("max-num-seqs")
    if isinstance(limit, int | float) and not isinstance(limit, bool):
        peaks.append(min(limit, MOST_SEQUENCES))
    is_open = workload.goodput_search or any(not isinstance(rung.arrivals, ClosedLoop) for rung in workload.rungs)
    if seen_running and is_open:
        peaks.append(min(OPEN_LOOP_PEAK * seen_running, MOST_SEQUENCES))
    return max(1, math.ceil(MARGIN * max(peaks, default=FEWEST_AT_ONCE)))


def longest_shape(workload: Workload) -> RequestShape:
    """Of the shapes together as frequent as all of them: the longest, at its full length, in one request. Where it is a
    conversation's, its prompt is all that was said before the last answer."""
    shape = max(workload.shapes, key=lambda shape: shape.longest_tokens)
    prefix_tokens = shape.prefix.tokens if shape.prefix else 0
    output_tokens = max(1, longest(shape.output))
    prompt_tokens = shape.longest_tokens - prefix_tokens - output_tokens
    if shape.form.chat:
        prompt_tokens = math.floor(CHAT_SHARE * prompt_tokens)
    return replace(
        shape,
        prompt=FixedLength(tokens=max(1, prompt_tokens)),
        output=FixedLength(tokens=output_tokens),
        conversation=None,
        share=sum(other.share for other in workload.shapes),
    )


def _longest_first(trace: Trace, at_once: int) -> Trace:
    """Each row at most once: the same row twice in one turn through a trace would be found in the prefix cache."""
    by_length = sorted(range(len(trace.rows)), key=lambda place: -trace.rows[place].longest_tokens)
    half = min(at_once, math.ceil(len(by_length) / 2))
    long, others = by_length[:half], sorted(by_length[half:])[:half]
    places = [place for place in chain(*zip_longest(long, others)) if place is not None]
    return replace(trace, rows=tuple(trace.rows[place] for place in places))
