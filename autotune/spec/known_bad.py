"""Combinations that practitioners know to serve badly. None is forbidden: each start tells more than a rule of thumb.

Said of the default and the incumbent as they are, and once of a space that leads to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotune.spec.config import FlagValue
from autotune.spec.one_change import one_change_each
from autotune.spec.problem import Problem
from autotune.spec.workload import Workload, mean

_HIGH_UTILIZATION = 0.95
"""Above it engines are known not to start, or to die later under load."""
_MANY_SEQUENCES = 1024
"""The most that vLLM chooses by default (engine/arg_utils.py, get_batch_defaults; its throughput mode doubles it)."""
_SHORT_TOKENS = 512
_MANY_PIECES = 16
_LATENCIES = ("ttft", "tpot", "itl", "e2e", "latency")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBad:
    """`kind` is the same for every configuration that the same thing is said of."""

    kind: str
    flags: str
    text: str


def known_bad(
    flags: Mapping[str, FlagValue], workload: Workload, *, defaults: Mapping[str, FlagValue], latency: bool
) -> tuple[KnownBad, ...]:
    """`flags` of one engine; `defaults` stand in for those that aren't given. `latency`: whether an objective or SLO
    is a latency."""
    known = {**defaults, **{name: value for name, value in flags.items() if value is not None}}
    return tuple(_found(known, workload, latency=latency))


def known_bad_notices(problem: Problem) -> tuple[str, ...]:
    """One sentence per combination and place: the default, the incumbent, some candidates."""
    latency = _judges_latency(problem)
    said: set[str] = set()
    notices = []
    for change in one_change_each(problem):
        who = "the incumbent" if change.incumbent else "the default" if change.name is None else "candidates"
        for bad in known_bad(change.config.flags, problem.workload, defaults=problem.defaults, latency=latency):
            if who == "candidates" and bad.kind in said:
                continue
            said.add(bad.kind)
            notices.append(f"{bad.flags} ({who}): {bad.text}")
    return tuple(notices)


def _judges_latency(problem: Problem) -> bool:
    metrics = [*(one.metric for one in problem.objectives), *(slo.metric for slo in problem.slos)]
    return any(metric.startswith(_LATENCIES) for metric in metrics)


def _found(known: Mapping[str, FlagValue], workload: Workload, *, latency: bool) -> Iterator[KnownBad]:
    if (offload := _number(known, "cpu-offload-gb")) > 0:
        yield KnownBad(
            kind="cpu offload",
            flags=f"cpu-offload-gb {offload:g}",
            text="weights that lie in the host's memory are fetched for every step, so that each token takes several "
            "times as long; quantize the weights or use more GPUs per engine instead",
        )
    if (stages := _number(known, "pipeline-parallel-size")) > 1 and latency:
        yield KnownBad(
            kind="pipeline for latency",
            flags=f"pipeline-parallel-size {stages:g}",
            text="pipelines serve batch throughput, and every request still goes through all stages; for latencies "
            "compare it with tensor-parallel-size",
        )
    utilization = _number(known, "gpu-memory-utilization")
    if utilization > _HIGH_UTILIZATION and known.get("enable-prefix-caching") is True:
        yield KnownBad(
            kind="utilization with prefix cache",
            flags=f"gpu-memory-utilization {utilization:g} with enable-prefix-caching",
            text="kept prefixes fill the whole KV cache, and what else needs memory finds none: such engines start and "
            "die later under load; stay at 0.95 or below",
        )
    sequences, tokens = _number(known, "max-num-seqs"), _request_tokens(workload)
    if sequences > _MANY_SEQUENCES and tokens is not None and tokens <= _SHORT_TOKENS:
        yield KnownBad(
            kind="many short requests",
            flags=f"max-num-seqs {sequences:g} with requests of {tokens:,.0f} tokens",
            text="so many short requests spend their time on scheduling and sampling, and each waits for all the "
            "others' steps",
        )
    yield from _tiny_chunks(known, workload)


def _tiny_chunks(known: Mapping[str, FlagValue], workload: Workload) -> Iterator[KnownBad]:
    prompt = _longest_usual_prompt(workload)
    if known.get("enable-chunked-prefill") is not True or prompt is None:
        return
    for name in ("max-num-batched-tokens", "long-prefill-token-threshold"):
        chunk = _number(known, name)
        if chunk > 0 and prompt / chunk >= _MANY_PIECES:
            yield KnownBad(
                kind=f"tiny chunks by {name}",
                flags=f"{name} {chunk:g} with prompts of {prompt:,.0f} tokens",
                text=f"such a prompt takes {-(-prompt // chunk):.0f} steps before its first token",
            )


def _number(known: Mapping[str, FlagValue], name: str) -> float:
    """0 where it isn't known or no number: no rule here is about zero."""
    value = known.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _request_tokens(workload: Workload) -> float | None:
    """Prompt and output of the usual request; None for a trace, whose prompts aren't summed up here."""
    if not workload.shapes:
        return None
    whole = sum(
        shape.share * ((shape.prefix.tokens if shape.prefix else 0) + mean(shape.prompt) + mean(shape.output))
        for shape in workload.shapes
    )
    return whole / sum(shape.share for shape in workload.shapes)


def _longest_usual_prompt(workload: Workload) -> float | None:
    """The mean prompt, without what may be shared, of the shape that has the longest."""
    return max((mean(shape.prompt) for shape in workload.shapes), default=None)
