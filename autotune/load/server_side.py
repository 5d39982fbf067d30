"""What the engine's own counters and readings have against a rung. `samples` begin before its first request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from autotune.spec.measurement import EngineSample, Measurement, RequestRecord

_THROTTLED_SHARE = 0.1
_CACHED_SLACK = 0.05


def counted_otherwise(records: Sequence[RequestRecord], samples: Sequence[EngineSample]) -> list[str]:
    """The engine must have finished our requests and no others, and generated their tokens and no others.

    A request that failed may have been finished or not, its tokens generated or not; `n` sequences count as one or n.
    Counters that this vLLM doesn't export say nothing.
    """
    finished = [record for record in records if record.error is None]
    bounds: dict[str, tuple[str, Callable[[EngineSample], float | None], int, int | None]] = {
        "requests": (
            "finished",
            lambda sample: sample.requests_done,
            len(finished),
            sum(record.n for record in records),
        ),
        "output tokens": (
            "generated",
            lambda sample: sample.generation_tokens,
            sum(record.output_tokens or 0 for record in finished),
            _most_tokens(records),
        ),
    }
    reasons = []
    for what, (did, read, least, most) in bounds.items():
        gained = _gained(samples, read)
        if gained is None:
            continue
        if most is not None and gained > most:
            reasons.append(f"the engine {did} {gained} {what}, at most {most} of them ours: someone else uses it")
        elif gained < least:
            reasons.append(f"the engine {did} {gained} {what}, we were given {least}: another engine answered")
    return reasons


def settled(records: Sequence[RequestRecord], samples: Sequence[EngineSample]) -> bool:
    """Whether the last sample has caught up with the answers."""
    return not any("another engine" in reason for reason in counted_otherwise(records, samples))


def cached_too_much(measurement: Measurement, findable_share: Callable[[], float]) -> str | None:
    """Fresh prompts can't be found in a cache; what is found beyond the shared prefixes was left by an earlier run.

    A preempted request finds its own blocks again, which older counters don't tell apart: then nothing is said.
    """
    cached = measurement.cached_prompt_share
    if cached is None or cached <= _CACHED_SLACK or measurement.preemptions:
        return None
    most = findable_share()
    if cached <= most + _CACHED_SLACK:
        return None
    return (
        f"{100 * cached:.0f} % of the prompt tokens came from the prefix cache, these prompts share at most "
        f"{100 * most:.0f} %: the cache held them from an earlier run"
    )


def disturbed(samples: Sequence[EngineSample]) -> list[str]:
    """Throttled clocks and kernels compiled in the middle of it."""
    reasons = []
    throttled = [sample.throttled_by for sample in samples if sample.throttled_by]
    if len(throttled) > _THROTTLED_SHARE * len(samples):
        named = Counter(reason for found in throttled for reason in found)
        why = ", ".join(reason for reason, _ in named.most_common())
        reasons.append(f"GPU clocks were throttled in {len(throttled)} of {len(samples)} readings: {why}")
    if samples:
        compiled = samples[-1].compilations[len(samples[0].compilations) :]
        if compiled:
            reasons.append(f"{len(compiled)} kernels were compiled while it was measured, the first: {compiled[0]}")
    return reasons


def _most_tokens(records: Sequence[RequestRecord]) -> int | None:
    most = 0
    for record in records:
        tokens = record.output_tokens if record.error is None else record.asked_output_tokens
        if tokens is None:
            return None
        most += tokens
    return most


def _gained(samples: Sequence[EngineSample], read: Callable[[EngineSample], float | None]) -> int | None:
    known = [value for sample in samples if (value := read(sample)) is not None]
    return round(known[-1] - known[0]) if len(known) > 1 else None
