"""What a rung showed, from its request records. docs/measurement.md defines every figure and says why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.load import intervals
from autotune.spec.measurement import PER_REQUEST_SLO_METRICS, EngineSample, Measurement, RequestRecord
from autotune.spec.objective import Slo
from autotune.spec.workload import ClosedLoop, Rung

Floats = NDArray[np.float64]

_SHORTEST_S = 1e-6
"""The clients' resolution: a window shorter than that holds nothing to divide."""

_LONG_IN_RAMPS = 5


def percentile(values: Sequence[float] | Floats, q: float) -> float:
    """Nearest-rank percentile, so that a p99 is a latency some request really had; `q` in [0, 1].

    Raises ValueError on an empty sample: "no requests" is not "zero latency".
    """
    if len(values) == 0:
        raise ValueError("no percentile of an empty sample")
    return float(np.partition(np.asarray(values, dtype=float), rank := intervals.rank(q, len(values)))[rank])


def measure(
    rung: Rung,
    records: Sequence[RequestRecord],
    *,
    elapsed_s: float,
    sending_until_s: float | None,
    gpus: int,
    slos: Sequence[Slo],
    samples: Sequence[EngineSample],
    complete: bool,
    streamed_tokens: int | None = None,
) -> Measurement:
    """The rung so far, or all of it. `samples` count their `at_s` from the rung's beginning.

    `streamed_tokens`: what `LoadBlock` of that name says; it makes the throughput of an incomplete rung exact. Without
    it the requests in flight are taken to be half done. Latencies of an incomplete rung are those of the requests that
    have ended, the fast ones first.
    """
    finished = [r for r in records if r.error is None and r.first_token_s is not None and r.done_s is not None]
    failed = sum(record.error is not None for record in records)
    latencies = _Latencies.of(finished, from_scheduled=not isinstance(rung.arrivals, ClosedLoop))
    good = latencies.within(slos)
    if complete:
        rates = _rates_in_window(finished, good, _window(rung, finished, elapsed_s, sending_until_s))
    else:
        running = samples[-1].running if samples else None
        if running is None and isinstance(rung.arrivals, ClosedLoop):
            running = float(rung.arrivals.concurrency)
        busy = running if running is not None and sending_until_s is None else 0.0
        rates = _rates_so_far(finished, good, elapsed_s, busy=busy, streamed_tokens=streamed_tokens)
    load = _EngineUnderLoad.of(samples, until_s=sending_until_s)
    lateness = [1e3 * (record.sent_s - record.scheduled_s) for record in records]
    figures = {
        "output_tok_per_s": rates.output_tok_per_s,
        "output_tok_per_s_per_gpu": _per(rates.output_tok_per_s, gpus),
        "total_tok_per_s_per_gpu": _per(rates.total_tok_per_s, gpus),
        "requests_per_s": rates.requests_per_s,
        "requests_per_s_per_gpu": _per(rates.requests_per_s, gpus),
        "offered_rps": _offered_rps(rung, records),
        "goodput_rps": rates.goodput_rps,
        "goodput_rps_per_gpu": _per(rates.goodput_rps, gpus),
        "ttft_p50_ms": _at(latencies.ttft_ms, 0.5),
        "ttft_p90_ms": _at(latencies.ttft_ms, 0.9),
        "ttft_p99_ms": _at(latencies.ttft_ms, 0.99),
        "ttft_sent_p50_ms": _at(latencies.ttft_sent_ms, 0.5),
        "ttft_sent_p99_ms": _at(latencies.ttft_sent_ms, 0.99),
        "tpot_p50_ms": _at(latencies.tpot_ms, 0.5),
        "tpot_p90_ms": _at(latencies.tpot_ms, 0.9),
        "tpot_p99_ms": _at(latencies.tpot_ms, 0.99),
        "itl_p50_ms": _at(latencies.itl_ms, 0.5),
        "itl_p99_ms": _at(latencies.itl_ms, 0.99),
        "engine_itl_mean_ms": load.inter_token_ms,
        "e2e_p50_ms": _at(latencies.e2e_ms, 0.5),
        "e2e_p90_ms": _at(latencies.e2e_ms, 0.9),
        "e2e_p99_ms": _at(latencies.e2e_ms, 0.99),
        "failed_share": failed / len(records) if records else None,
        "degenerate_share": _share([r.degenerate for r in finished if r.degenerate is not None]),
        "cached_prompt_share": _cached_share(finished, samples),
        "send_lateness_p99_ms": _at(np.array(lateness), 0.99),
        "running_mean": load.running_mean,
        "running_max": load.running_max,
        "waiting_max": load.waiting_max,
        "kv_cache_usage_max": load.kv_cache_usage_max,
    }
    stay_ms = figures["e2e_p50_ms"] or 0.0
    stay_bins = stay_ms / 1e3 / rates.bins_s * intervals.BINS if rates.bins_s > 0 else 1.0
    ranges = intervals.of_percentiles(
        {
            "ttft": latencies.ttft_ms,
            "ttft_sent": latencies.ttft_sent_ms,
            "tpot": latencies.tpot_ms,
            "e2e": latencies.e2e_ms,
        }
    ) | intervals.of_rates(rates.tokens_per_bin, good, figures, block_bins=stay_bins)
    return Measurement(
        rung=rung.name,
        complete=complete,
        duration_s=elapsed_s,
        requests=len(records),
        finished=len(finished),
        failed=failed,
        gpus=gpus,
        concurrency=rung.arrivals.concurrency if isinstance(rung.arrivals, ClosedLoop) else None,
        preemptions=load.preemptions,
        intervals={name: ends for name, ends in ranges.items() if figures.get(name) is not None},
        **{name: _finite(value) for name, value in figures.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Latencies:
    """Milliseconds, in order of sending. `tpot_ms` is NaN where a sequence had one token or all
    came at once (not streamed): rows stay aligned."""

    ttft_ms: Floats
    ttft_sent_ms: Floats
    tpot_ms: Floats
    e2e_ms: Floats
    itl_ms: Floats

    @classmethod
    def of(cls, finished: Sequence[RequestRecord], *, from_scheduled: bool) -> _Latencies:
        ordered = sorted(finished, key=lambda record: record.sent_s)
        rows = np.array([[r.scheduled_s, r.sent_s, r.first_token_s, r.done_s, _tokens(r) / r.n] for r in ordered])
        scheduled, sent, first, done, tokens = rows.reshape(-1, 5).T
        gaps_us, counts = _gaps_us(ordered)
        owner = np.repeat(np.arange(len(ordered)), counts)
        streaming_us = np.bincount(owner, weights=gaps_us, minlength=len(ordered))
        start = scheduled if from_scheduled else sent
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = np.where((tokens > 1) & (counts > 0), streaming_us / (tokens - 1), np.nan)
        return cls(
            ttft_ms=1e3 * (first - start),
            ttft_sent_ms=1e3 * (first - sent),
            tpot_ms=tpot / 1e3,
            e2e_ms=1e3 * (done - start),
            itl_ms=gaps_us / 1e3,
        )

    def within(self, slos: Sequence[Slo]) -> NDArray[np.bool_]:
        """Whether each request met every limit that can be held against one request, whatever its percentile."""
        good = np.ones(len(self.ttft_ms), dtype=bool)
        families = {"ttft": self.ttft_ms, "tpot": self.tpot_ms, "e2e": self.e2e_ms}
        for slo in slos:
            family = slo.metric.rsplit("_p", 1)[0]
            if family in PER_REQUEST_SLO_METRICS and not slo.at_least:
                good &= ~(families[family] > slo.limit)  # one token has no time per token: nothing to miss
        return good


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """Of the whole engine. `tokens_per_bin`: output tokens in equal stretches of `bins_s`, for the intervals."""

    output_tok_per_s: float | None = None
    total_tok_per_s: float | None = None
    requests_per_s: float | None = None
    goodput_rps: float | None = None
    tokens_per_bin: Floats | None = None
    bins_s: float = 0.0


def ramp_s(rung: Rung, finished: Sequence[RequestRecord]) -> float:
    """How long a rung takes to fill: as long as its first requests usually stayed (a closed loop's first wave, an open
    loop's first twenty). Until then fewer are in flight than later, or all of them are being read at once.
    """
    ordered = sorted(finished, key=lambda record: record.sent_s)
    first = rung.arrivals.concurrency if isinstance(rung.arrivals, ClosedLoop) else 20
    return float(np.median([(record.done_s or 0.0) - record.sent_s for record in ordered[:first]])) if ordered else 0.0


def _window(
    rung: Rung, finished: Sequence[RequestRecord], elapsed_s: float, sending_until_s: float | None
) -> tuple[float, float]:
    """The window of throughput begins when the rung has filled and ends when the load stops being what the rung says.

    That is when sending stops; what follows is a drain at ever lower load, whose length depends on the engine. Where a
    rung is a batch (it is sent before half of it is being answered) the window is the whole of it, until the last
    answer; a rung of less than five times its ramp is too short to lose it.
    """
    last_s = max((record.done_s or 0.0 for record in finished), default=elapsed_s)
    if sending_until_s is None or sending_until_s <= 0:
        return 0.0, last_s
    match rung.arrivals:
        case ClosedLoop(concurrency=concurrency) if rung.duration_s == 0:
            is_batch = rung.requests < 2 * concurrency
        case _:
            unanswered = sum((record.first_token_s or 0.0) > sending_until_s for record in finished)
            is_batch = last_s > 2 * sending_until_s or unanswered > len(finished) / 2
    if is_batch:
        return 0.0, last_s
    end_s = min(sending_until_s, elapsed_s)
    begin_s = ramp_s(rung, finished)
    return (begin_s if end_s >= _LONG_IN_RAMPS * begin_s else 0.0), end_s


def _rates_in_window(finished: Sequence[RequestRecord], good: NDArray[np.bool_], window: tuple[float, float]) -> _Rates:
    """Tokens count when they arrive; a request counts by the share of its tokens that arrived inside the window.

    Counting whole requests by their end would favour engines whose waves happen to end just inside the window.
    """
    begin_s, end_s = window
    window_s = end_s - begin_s
    if not finished or window_s <= _SHORTEST_S:
        return _Rates()
    ordered = sorted(finished, key=lambda record: record.sent_s)
    times_s, owner, weights = token_times(ordered)
    inside = (times_s > begin_s) & (times_s <= end_s)
    tokens = np.array([_tokens(record) for record in ordered], dtype=float)
    share = np.bincount(owner, weights=weights * inside, minlength=len(ordered)) / np.maximum(tokens, 1)
    prompts = np.array([r.prompt_tokens or 0 for r in ordered if begin_s < (r.first_token_s or 0.0) <= end_s])
    output = float((weights * inside).sum())
    return _Rates(
        output_tok_per_s=output / window_s,
        total_tok_per_s=(output + float(prompts.sum())) / window_s,
        requests_per_s=float(share.sum()) / window_s,
        goodput_rps=float(share[good].sum()) / window_s,
        tokens_per_bin=_binned(times_s - begin_s, weights, window_s),
        bins_s=window_s,
    )


def _rates_so_far(
    finished: Sequence[RequestRecord],
    good: NDArray[np.bool_],
    elapsed_s: float,
    *,
    busy: float,
    streamed_tokens: int | None,
) -> _Rates:
    """`busy` requests are being answered now; their records will come only when they end."""
    if elapsed_s <= _SHORTEST_S or not (finished or streamed_tokens):
        return _Rates()
    if not finished:
        return _Rates(output_tok_per_s=(streamed_tokens or 0) / elapsed_s)
    mean_output = sum(_tokens(record) for record in finished) / len(finished)
    mean_prompt = sum(record.prompt_tokens or 0 for record in finished) / len(finished)
    streamed = mean_output * (len(finished) + busy / 2) if streamed_tokens is None else float(streamed_tokens)
    requests = streamed / mean_output if mean_output > 0 else float(len(finished))
    # Before this moment every request's tokens are known, unless one stays longer than any has so far.
    known_until_s = elapsed_s - max((record.done_s or 0.0) - record.sent_s for record in finished)
    bins: Floats | None = None
    if known_until_s > _SHORTEST_S:
        times_s, _, weights = token_times(finished)
        bins = _binned(times_s, weights, known_until_s)
    return _Rates(
        output_tok_per_s=streamed / elapsed_s,
        total_tok_per_s=(streamed + requests * mean_prompt) / elapsed_s,
        requests_per_s=requests / elapsed_s,
        goodput_rps=requests * float(good.mean()) / elapsed_s,
        tokens_per_bin=bins,
        bins_s=known_until_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineUnderLoad:
    running_mean: float | None = None
    running_max: float | None = None
    waiting_max: float | None = None
    kv_cache_usage_max: float | None = None
    preemptions: int | None = None
    inter_token_ms: float | None = None

    @classmethod
    def of(cls, samples: Sequence[EngineSample], *, until_s: float | None) -> _EngineUnderLoad:
        """Levels while requests were being sent, but the KV cache's fullest moment wherever it was; counters over all
        samples, the first one being their zero."""
        sending = [sample for sample in samples if until_s is None or sample.at_s <= until_s] or list(samples)
        running = [s.running for s in sending if s.running is not None]
        waiting = [s.waiting for s in sending if s.waiting is not None]
        usage = [s.kv_cache_usage for s in samples if s.kv_cache_usage is not None]
        inter_token_s = _gained_ratio((s.inter_token_s, s.inter_tokens) for s in samples)
        preempted = [s.preemptions for s in samples if s.preemptions is not None]
        return cls(
            running_mean=sum(running) / len(running) if running else None,
            running_max=max(running, default=None),
            waiting_max=max(waiting, default=None),
            kv_cache_usage_max=max(usage, default=None),
            preemptions=max(0, round(preempted[-1] - preempted[0])) if preempted else None,
            inter_token_ms=None if inter_token_s is None else 1e3 * inter_token_s,
        )


def _gained_ratio(readings: Iterable[tuple[float | None, float | None]]) -> float | None:
    """What the first counter gained by what the second did, from their first reading to the last; None where they
    weren't read twice, or the second stood still."""
    known = [(over, under) for over, under in readings if over is not None and under is not None]
    if len(known) < 2 or known[-1][1] <= known[0][1]:
        return None
    return (known[-1][0] - known[0][0]) / (known[-1][1] - known[0][1])


def _cached_share(finished: Sequence[RequestRecord], samples: Sequence[EngineSample]) -> float | None:
    """By the answers, where the server says it per request; otherwise by its prefix-cache counters."""
    told = [(r.cached_tokens, r.prompt_tokens) for r in finished if r.cached_tokens is not None and r.prompt_tokens]
    if told:
        return sum(cached for cached, _ in told) / sum(prompt for _, prompt in told)
    return _gained_ratio((s.prefix_hits, s.prefix_queries) for s in samples)


def _tokens(record: RequestRecord) -> int:
    """The server's count; the streamed events where it gave none."""
    return record.output_tokens if record.output_tokens is not None else len(record.token_gaps_us) // 4 + 1


def _gaps_us(records: Sequence[RequestRecord]) -> tuple[Floats, NDArray[np.int64]]:
    """The gaps of all records in one row, and how many each has."""
    joined = np.frombuffer(b"".join(record.token_gaps_us for record in records), dtype="<u4").astype(float)
    return joined, np.array([len(record.token_gaps_us) // 4 for record in records], dtype=np.int64)


def token_times(records: Sequence[RequestRecord]) -> tuple[Floats, NDArray[np.int64], Floats]:
    """When each streamed event arrived, whose it was, and the tokens it stands for (a server may bundle several)."""
    gaps_us, counts = _gaps_us(records)
    events = counts + 1
    owner = np.repeat(np.arange(len(records)), events)
    first_s = np.array([record.first_token_s or 0.0 for record in records])
    starts = np.cumsum(events) - events
    steps_us = np.zeros(int(events.sum()))
    is_gap = np.ones(len(steps_us), dtype=bool)
    is_gap[starts] = False
    steps_us[is_gap] = gaps_us
    since_all = np.cumsum(steps_us)
    times_s = first_s[owner] + (since_all - since_all[starts][owner]) / 1e6
    weights = (np.array([_tokens(record) for record in records]) / events)[owner]
    return times_s, owner, weights


def _binned(times_s: Floats, weights: Floats, window_s: float) -> Floats:
    """The tokens in each of `intervals.BINS` equal stretches of [0, window_s]."""
    inside = (times_s > 0) & (times_s <= window_s)
    bins = np.minimum((times_s[inside] / window_s * intervals.BINS).astype(np.int64), intervals.BINS - 1)
    return np.bincount(bins, weights=weights[inside], minlength=intervals.BINS).astype(float)


def _at(values: Floats, q: float) -> float | None:
    known = values[~np.isnan(values)]
    return percentile(known, q) if len(known) else None


def _share(judged: Sequence[bool]) -> float | None:
    return sum(judged) / len(judged) if judged else None


def _offered_rps(rung: Rung, records: Sequence[RequestRecord]) -> float | None:
    """None for a closed loop, whose rate is the engine's, and where all requests were due at once."""
    if isinstance(rung.arrivals, ClosedLoop) or len(records) < 2:
        return None
    due_s = [record.scheduled_s for record in records]
    span_s = max(due_s) - min(due_s)
    return (len(due_s) - 1) / span_s if span_s > 0 else None


def _per(value: float | None, gpus: int) -> float | None:
    return None if value is None else value / gpus


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
