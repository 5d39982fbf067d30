"""Whether a complete rung can be used at all. A rung that can't is retried, never scored."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from autotune.load.statistics import percentile
from autotune.spec.measurement import RequestRecord
from autotune.spec.workload import ClosedLoop, Rung

_CLOCK_SLACK_S = 1e-3


def unusable(
    rung: Rung,
    records: Sequence[RequestRecord],
    *,
    failed_share_limit: float = 0.05,
    lateness_limit_ms: float = 100.0,
) -> tuple[str, ...]:
    """Every reason against it, each a sentence with its numbers; empty when there is none.

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
    return tuple(reasons)


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
            return f"{counted} {what} tokens instead of {asked}"
    return None
