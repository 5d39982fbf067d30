"""Whether a complete rung can be used at all. A rung that can't is retried, never scored, no evidence of anything."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from autotune.load.server_side import cached_too_much, counted_otherwise, disturbed
from autotune.load.statistics import percentile
from autotune.load.steadiness import unsteady
from autotune.spec.measurement import METRICS, EngineSample, Measurement, RequestRecord
from autotune.spec.workload import TEMPLATE_TOKENS, ClosedLoop, Rung

_CLOCK_SLACK_S = 1e-3
_BUSY_LIMIT = 0.95
_TEXT_DRIFT = 0.1
_OUTLIER = 10.0
_OUTLIER_S = 0.5


def unusable(
    rung: Rung,
    records: Sequence[RequestRecord],
    *,
    failed_share_limit: float = 0.05,
    lateness_limit_ms: float = 100.0,
) -> tuple[str, ...]:
    """What the records themselves have against it, each a sentence with its numbers; empty when there is nothing.

    Failed requests up to `failed_share_limit` are left in: they cost the configuration goodput and its SLOs.
    """
    if not records:
        return ("no request was recorded",)
    finished = [record for record in records if record.error is None]
    if not finished:
        return (f"none of {len(records)} requests finished: {_commonest_error(records)}",)
    reasons: list[str] = []
    if len(records) < rung.requests:
        reasons.append(f"{len(records)} requests were recorded, the rung sends {rung.requests}")
    failed = len(records) - len(finished)
    if failed > failed_share_limit * len(records):
        reasons.append(f"{failed} of {len(records)} requests failed: {_commonest_error(records)}")
    if impossible := [problem for record in finished if (problem := _impossible(record))]:
        reasons.append(f"{len(impossible)} requests with impossible values, the first: {impossible[0]}")
    if miscounted := [problem for record in finished if (problem := _miscounted(record))]:
        reasons.append(f"{len(miscounted)} answers weren't what was asked for, the first: {miscounted[0]}")
    if not isinstance(rung.arrivals, ClosedLoop):
        late_ms = percentile([1e3 * (record.sent_s - record.scheduled_s) for record in records], 0.99)
        if late_ms > lateness_limit_ms:
            reasons.append(
                f"the load client was late: p99 of sent minus scheduled is {late_ms:.0f} ms, "
                f"at most {lateness_limit_ms:.0f} ms are allowed"
            )
    if (compiled := _compiling(finished)) is not None:
        reasons.append(compiled)
    return tuple(reasons)


def untrustworthy(
    rung: Rung,
    records: Sequence[RequestRecord],
    measurement: Measurement,
    *,
    samples: Sequence[EngineSample] = (),
    client_busy: Sequence[float] = (),
    sending_until_s: float | None = None,
    findable_share: Callable[[], float] = lambda: 1.0,
) -> tuple[str, ...]:
    """Everything against a rung: what `unusable` says, and what the engine, the client and the figures say.

    `samples` begin before the first request and end after the last answer; `client_busy` are the blocks' readings while
    requests were being sent. `findable_share` is asked for only when many prompt tokens were found in the cache
    (`autotune.load.findable`).
    """
    reasons = list(unusable(rung, records))
    if not any(record.error is None for record in records):
        return tuple(reasons)
    reasons += impossible_figures(measurement)
    reasons += counted_otherwise(records, samples)
    if (cached := cached_too_much(measurement, findable_share)) is not None:
        reasons.append(cached)
    reasons += disturbed(samples)
    if client_busy and (busy := sum(client_busy) / len(client_busy)) > _BUSY_LIMIT:
        reasons.append(
            f"the load client was the limit: {100 * busy:.0f} % of the time it was working or waiting for a CPU, "
            f"at most {100 * _BUSY_LIMIT:.0f} % are allowed"
        )
    if sending_until_s is not None and (trend := unsteady(rung, records, until_s=sending_until_s)) is not None:
        reasons.append(trend)
    return tuple(reasons)


def remarks(records: Sequence[RequestRecord]) -> tuple[str, ...]:
    """What to know of a rung that is used all the same."""
    found = [drifted(records)]
    judged = [record.degenerate for record in records if record.degenerate is not None]
    if any(judged):
        found.append(f"{sum(judged)} of {len(judged)} answers were empty or one token over and over")
    return tuple(remark for remark in found if remark is not None)


def drifted(records: Sequence[RequestRecord]) -> str | None:
    """Prompts sent as text that came out longer or shorter than planned.

    Throughput counts the server's tokens either way. A tenth and what a chat template adds are to be expected
    (vllm#24937).
    """
    known = [
        (record.prompt_tokens, record.about_prompt_tokens)
        for record in records
        if record.prompt_tokens is not None and record.about_prompt_tokens
    ]
    off = [(got, about) for got, about in known if abs(got - about) > _TEXT_DRIFT * about + TEMPLATE_TOKENS]
    if not off:
        return None
    got, about = max(off, key=lambda one: abs(one[0] / one[1] - 1))
    return (
        f"{len(off)} of {len(known)} prompts came out of the server's tokenizer with another length than planned, at "
        f"worst {got} tokens instead of about {about} ({100 * (got / about - 1):+.0f} %)"
    )


def impossible_figures(measurement: Measurement) -> list[str]:
    """Latencies are above 0 and no longer than the rung, rates above 0, all of them finite: a 0 would win a search."""
    wrong = []
    for name in METRICS:
        value = measurement.value(name)
        if value is None:
            continue
        latency = name.endswith("_ms") and name != "send_lateness_p99_ms"
        rate = "_per_s" in name
        if (
            not math.isfinite(value)
            or ((latency or rate) and value < 0)
            or (value == 0 and (name.startswith(("ttft", "e2e")) or (rate and measurement.finished)))
            or (latency and value > 1e3 * measurement.duration_s + 1e3 * _CLOCK_SLACK_S)
        ):
            wrong.append(f"{name} {value:g}")
    return [f"impossible figures: {', '.join(wrong)}"] if wrong else []


def _commonest_error(records: Sequence[RequestRecord]) -> str:
    counted = Counter(record.error for record in records if record.error is not None)
    return next((f"{error} ({count} times)" for error, count in counted.most_common(1)), "no error was given")


def _impossible(record: RequestRecord) -> str | None:
    if record.first_token_s is None or record.done_s is None:
        return "finished without a token"
    times = (record.scheduled_s, record.sent_s, record.first_token_s, record.done_s)
    if not all(math.isfinite(at_s) for at_s in times):
        return f"times {times}"
    if any(later < earlier - _CLOCK_SLACK_S for earlier, later in pairwise(times)):
        return f"scheduled, sent, first token and done at {times} s are out of order"
    if record.cached_tokens is not None and record.cached_tokens > (record.prompt_tokens or 0):
        return f"{record.cached_tokens} of {record.prompt_tokens} prompt tokens came from the cache"
    return None


def _miscounted(record: RequestRecord) -> str | None:
    """`ignore_eos` fixes the answer's length; a prompt of token ids is taken as it is."""
    if record.output_tokens is None or record.prompt_tokens is None:
        return "the server didn't count its tokens"
    for what, counted, asked in (
        ("output", record.output_tokens, record.asked_output_tokens),
        ("prompt", record.prompt_tokens, record.asked_prompt_tokens),
    ):
        if asked is not None and counted != asked:
            off = f" ({100 * (counted / asked - 1):+.0f} %)" if asked else ""
            return f"{counted} {what} tokens instead of {asked}{off}"
    return None


def _compiling(finished: Sequence[RequestRecord]) -> str | None:
    """A request that was alone in the engine and still waited ten times as long as usual for its first token.

    No queue and no batch explains that; compiling kernels at their first use does (vllm#39790). Only asked of rungs in
    which requests are mostly alone: otherwise a first token may well have waited for others.
    """
    ordered = sorted(finished, key=lambda record: record.sent_s)
    busy_until_s, waits_s = -math.inf, []
    for record, following in zip(ordered, [*ordered[1:], None], strict=True):
        first_s = record.first_token_s if record.first_token_s is not None else math.inf
        if record.sent_s >= busy_until_s and (following is None or following.sent_s >= first_s):
            waits_s.append(first_s - record.sent_s)
        busy_until_s = max(busy_until_s, record.done_s if record.done_s is not None else math.inf)
    if len(waits_s) < 3 or len(waits_s) < len(ordered) / 2:
        return None
    usual_s = percentile(waits_s, 0.5)
    spikes = [wait_s for wait_s in waits_s if wait_s > _OUTLIER * usual_s and wait_s > _OUTLIER_S]
    if not spikes:
        return None
    return (
        f"{len(spikes)} requests that were alone waited up to {1e3 * max(spikes):.0f} ms for their first token, "
        f"usually it takes {1e3 * usual_s:.0f} ms: something was compiled or loaded in the middle of it"
    )
