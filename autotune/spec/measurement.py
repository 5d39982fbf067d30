"""What the load saw (one record per request) and what a rung showed (one measurement)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """Times in seconds since the rung began. Token counts are the server's own; None where it didn't say.

    `token_gaps_us`: microseconds between successive streamed tokens, little-endian uint32 packed into bytes.
    """

    scheduled_s: float
    sent_s: float
    first_token_s: float | None
    done_s: float | None
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None = None
    error: str | None = None
    token_gaps_us: bytes = b""
    n: int = 1
    asked_prompt_tokens: int | None = None
    asked_output_tokens: int | None = None
    """What the client asked for; output tokens of all `n` sequences together, as the server counts them."""
    about_prompt_tokens: int | None = None
    """What a prompt that was sent as text was planned to have: its tokens are the server's to make."""
    degenerate: bool | None = None
    """Whether the answer of a chat was empty or one token over and over; None where that can't be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBlock:
    """What came in during about one second of load: requests that ended, and the load's age when it was cut."""

    elapsed_s: float
    records: tuple[RequestRecord, ...]
    in_flight: int = 0
    sending: bool = True
    """False once the rung has sent its last request and only drains."""
    streamed_tokens: int | None = None
    """Output tokens that have arrived since the rung began, those of requests still in flight included."""
    client_busy: float | None = None
    """How much of the time since the last block the busiest load client was running or waiting for a CPU, in [0, 1].
    None where the kernel doesn't say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSample:
    """One reading of /metrics; None = this vLLM version doesn't export it. Counters are totals since start."""

    at_s: float
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    preemptions: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    requests_done: float | None = None
    inter_token_s: float | None = None
    inter_tokens: float | None = None
    """The engine's own gaps between tokens: their sum, and how many there were."""
    throttled_by: tuple[str, ...] = ()
    """Why a GPU of the engine runs below the clock it asks for, when the reason is heat or a fault (`engine.gpus`)."""
    compilations: tuple[str, ...] = ()
    """What the engine has logged since it was ready about kernels compiled in the middle of serving, a line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """What the start log said; None = it didn't. GiB are per GPU."""

    weights_gib: float | None = None
    kv_cache_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    compile_s: float | None = None
    graphs_s: float | None = None
    graphs_gib: float | None = None
    engine_init_s: float | None = None
    graphs_truncated_to: int | None = None
    """The largest CUDA graph, where vLLM made it smaller than it was asked for."""
    vllm_version: str | None = None
    metric_names: str | None = None
    """JSON: field of `EngineSample` -> the name it is read from in /metrics, null where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One rung, or the part of it seen so far (`complete` False). None = nothing to say, never "zero".

    Throughput is per GPU unless its name says otherwise. `ttft` counts from the scheduled time in open loop and from
    the sent time in closed loop; `ttft_sent` always from the sent time. Percentiles are nearest-rank over finished
    requests (`itl`: over tokens). `goodput_rps` counts requests that met every per-request SLO limit. Where a goodput
    search was made, it is that of the highest rate within the SLOs, `max_rate_within_slo_rps`, and nothing else of the
    trial's measurement comes from there. `offered_rps`: the rate at which an open loop's requests were due.
    `concurrency`: clients of a closed loop, None in an open one.
    `intervals` holds (low, high) per metric where there were enough requests to say.
    """

    rung: str
    complete: bool
    duration_s: float
    requests: int
    finished: int
    failed: int
    gpus: int
    concurrency: int | None = None
    output_tok_per_s: float | None = None
    output_tok_per_s_per_gpu: float | None = None
    total_tok_per_s_per_gpu: float | None = None
    requests_per_s: float | None = None
    requests_per_s_per_gpu: float | None = None
    offered_rps: float | None = None
    goodput_rps: float | None = None
    goodput_rps_per_gpu: float | None = None
    max_rate_within_slo_rps: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p90_ms: float | None = None
    ttft_p99_ms: float | None = None
    ttft_sent_p50_ms: float | None = None
    ttft_sent_p99_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p90_ms: float | None = None
    tpot_p99_ms: float | None = None
    itl_p50_ms: float | None = None
    itl_p99_ms: float | None = None
    engine_itl_mean_ms: float | None = None
    e2e_p50_ms: float | None = None
    e2e_p90_ms: float | None = None
    e2e_p99_ms: float | None = None
    failed_share: float | None = None
    degenerate_share: float | None = None
    cached_prompt_share: float | None = None
    send_lateness_p99_ms: float | None = None
    running_mean: float | None = None
    running_max: float | None = None
    waiting_max: float | None = None
    kv_cache_usage_max: float | None = None
    preemptions: int | None = None
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def value(self, metric: str) -> float | None:
        """The metric by its column name. Raises KeyError for a name that is no metric."""
        if metric not in METRICS:
            raise KeyError(metric)
        found: float | None = getattr(self, metric)
        return found


_NOT_METRICS = {"rung", "complete", "intervals", "gpus", "requests", "finished", "failed", "duration_s", "concurrency"}
METRICS: tuple[str, ...] = tuple(f.name for f in fields(Measurement) if f.name not in _NOT_METRICS)
"""Names that objectives and SLOs can use, with their unit as in the columns (`ttft_p99_ms`)."""

PER_REQUEST_SLO_METRICS = ("ttft", "tpot", "e2e")
"""Families whose limit can be held against one request (for goodput)."""
