"""The columns of a run's four tables. Declared, never inferred: a schema inferred from the first rows loses columns
that appear later, and empty dicts or mixed types can't be written at all (apache/arrow#9886).

Null means "not known" or "does not apply"; no column uses 0, -1 or NaN for that. A change of a column's type or
meaning raises SCHEMA_VERSION; a new nullable column doesn't.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import pyarrow as pa

from autotune.spec.measurement import METRICS, Measurement

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    type: pa.DataType
    meaning: str
    unit: str = ""


def _text(name: str, meaning: str, unit: str = "") -> Column:
    return Column(name=name, type=pa.string(), meaning=meaning, unit=unit)


def _whole(name: str, meaning: str, unit: str = "") -> Column:
    return Column(name=name, type=pa.int64(), meaning=meaning, unit=unit)


def _real(name: str, meaning: str, unit: str = "") -> Column:
    return Column(name=name, type=pa.float64(), meaning=meaning, unit=unit)


def _truth(name: str, meaning: str) -> Column:
    return Column(name=name, type=pa.bool_(), meaning=meaning)


_METRIC_MEANING = {
    "output_tok_per_s": ("generated tokens per second, whole engine", "tok/s"),
    "output_tok_per_s_per_gpu": ("generated tokens per second and GPU", "tok/s"),
    "total_tok_per_s_per_gpu": ("prompt and generated tokens per second and GPU", "tok/s"),
    "requests_per_s": ("finished requests per second, whole engine", "1/s"),
    "requests_per_s_per_gpu": ("finished requests per second and GPU", "1/s"),
    "offered_rps": ("rate at which the requests of an open loop were due, whole engine", "1/s"),
    "goodput_rps": ("requests per second that met every per-request limit, whole engine", "1/s"),
    "goodput_rps_per_gpu": ("requests per second and GPU that met every per-request limit", "1/s"),
    "max_rate_within_slo_rps": ("highest rate at which every limit held (goodput search), whole engine", "1/s"),
    "failed_share": ("failed requests / requests that ended", "share"),
    "degenerate_share": ("answers of chats that were empty or one token repeated / those that can be judged", "share"),
    "cached_prompt_share": ("prompt tokens served from the prefix cache / prompt tokens", "share"),
    "engine_itl_mean_ms": ("mean gap between tokens as the engine itself counts it", "ms"),
    "send_lateness_p99_ms": ("how late the client sent, against its schedule, 99th percentile", "ms"),
    "running_mean": ("sequences running in the engine, mean over the rung", "sequences"),
    "running_max": ("sequences running in the engine, maximum", "sequences"),
    "waiting_max": ("requests waiting in the engine, maximum", "requests"),
    "kv_cache_usage_max": ("share of the KV cache in use, maximum", "share"),
    "preemptions": ("sequences preempted during the rung", "sequences"),
}
_LATENCY_MEANING = {
    "ttft": "time to the first token (open loop: from the scheduled time; closed loop: from the sent time)",
    "ttft_sent": "time to the first token, from the sent time",
    "tpot": "time per output token after the first, per request",
    "itl": "gap between successive tokens, over all tokens",
    "e2e": "time from the request to its last token",
}


def _metric_meaning(metric: str) -> tuple[str, str]:
    if metric in _METRIC_MEANING:
        return _METRIC_MEANING[metric]
    family, _, percentile = metric.removesuffix("_ms").rpartition("_p")
    if family in _LATENCY_MEANING:
        return f"{_LATENCY_MEANING[family]}, {percentile}th percentile", "ms"
    return metric.replace("_", " "), ""


_COUNTS = (
    _truth("complete", "whether the rung ran to its end; false: stopped on the way"),
    _real("duration_s", "how long the rung's load was measured", "s"),
    _whole("requests", "requests that were sent", "requests"),
    _whole("finished", "requests that ended well", "requests"),
    _whole("failed", "requests that ended with an error", "requests"),
    _whole("concurrency", "clients of a closed loop; null in an open one", "clients"),
)


def _measurement_columns() -> list[Column]:
    """Every metric as a value, then the interval of every metric (null where there were too few requests)."""
    whole_numbers = {field.name for field in fields(Measurement) if "int" in str(field.type)}
    columns = list(_COUNTS)
    for metric in METRICS:
        meaning, unit = _metric_meaning(metric)
        columns.append((_whole if metric in whole_numbers else _real)(metric, meaning, unit))
    for metric in METRICS:
        _, unit = _metric_meaning(metric)
        columns.append(_real(f"{metric}_low", f"lower end of the interval of {metric}", unit))
        columns.append(_real(f"{metric}_high", f"upper end of the interval of {metric}", unit))
    return columns


_KEY = (
    _whole("trial", "number of the trial, from 0; 0 is the default configuration, 1 the incumbent if given"),
    _whole("attempt", "attempt at this trial, from 1; a retried trial keeps its number"),
)

FACTS = (
    _real("weights_gib", "model weights per GPU, from the start log", "GiB"),
    _real("kv_cache_gib", "memory for the KV cache per GPU, from the start log", "GiB"),
    _whole("kv_cache_tokens", "tokens that fit into the KV cache, from the start log", "tokens"),
    _real("max_concurrency", "requests of max-model-len that fit at once, from the start log", "requests"),
    _real("compile_s", "torch.compile during the start, from the start log", "s"),
    _real("graphs_s", "capture of CUDA graphs, from the start log", "s"),
    _real("graphs_gib", "memory of CUDA graphs per GPU, from the start log", "GiB"),
    _real("engine_init_s", "profiling, KV cache and warm-up inside the engine, from the start log", "s"),
    _whole("graphs_truncated_to", "largest CUDA graph, where vLLM truncated what was asked for (start log)", "tokens"),
    _text("vllm_version", "version of vLLM, from the start log"),
    _text("metric_names", "which of its names each engine metric was read from, null where it has none", "JSON"),
)

TRIAL_COLUMNS: tuple[Column, ...] = (
    *_KEY,
    _text("role", "default, incumbent, search, baseline, screen or confirm"),
    _text("verdict", "measured, infeasible, dominated, invalid or broken"),
    _text("cause", "class of the failure (infeasible and broken)"),
    _text("evidence", "the log line that shows the cause (infeasible)"),
    _real("shortfall", "missing memory / device memory, 0 when unknown (infeasible)", "share"),
    _text("bounds", "what the failure implies for single flags, as `read-log` has it (infeasible)", "JSON"),
    Column(
        name="dominated_by",
        type=pa.list_(pa.int64()),
        meaning="trials that even its optimist could not beat (dominated)",
    ),
    Column(name="reasons", type=pa.list_(pa.string()), meaning="why the measurement can't be used (invalid)"),
    _text("error", "what failed outside the engine (broken)"),
    _text("flags", "flags given to vLLM, name to value", "JSON"),
    _text("config", "the whole configuration: model, flags, env", "JSON"),
    _text("point", "what the study suggested, dimension to value", "JSON"),
    _text("argv", "the command line that was started", "JSON"),
    _whole("seed", "seed of the trial's prompts and arrivals"),
    _text("workload", "name of the workload"),
    _text("reference_rung", "rung that the measured columns of this row come from: the last reference rung reached"),
    *_measurement_columns(),
    _whole("gpus", "devices of the engine (CPU: ranks)", "devices"),
    _real("gpu_seconds", "gpus x the sum of the five times below", "s"),
    _real("start_seconds", "starting the engine", "s"),
    _real("warm_up_seconds", "warm-up load, not measured", "s"),
    _real("load_seconds", "measured load, draining included", "s"),
    _real("stop_seconds", "stopping the engine and waiting for its memory", "s"),
    _real("dead_seconds", "spent on an engine that never served", "s"),
    Column(name="devices", type=pa.list_(pa.string()), meaning="identifiers of the devices"),
    _text("node", "machine that ran the trial"),
    _truth("engine_reused", "whether the engine of an earlier trial was used again"),
    _text("launched", "configuration the engine was started with, where live settings made the difference", "JSON"),
    _real("started_at", "when the trial began, Unix time", "s"),
    _real("ended_at", "when the trial ended, Unix time", "s"),
    *FACTS,
    _text("versions", "versions of what took part", "JSON"),
)

RUNG_COLUMNS: tuple[Column, ...] = (
    *_KEY,
    _whole("position", "order of the rungs within the trial, from 0"),
    _text("rung", "name of the rung"),
    *_measurement_columns(),
    _whole("gpus", "devices that the per-GPU columns divide by", "devices"),
)

REQUEST_COLUMNS: tuple[Column, ...] = (
    *_KEY,
    _text("rung", "name of the rung"),
    _whole("index", "order in which the rung's requests ended, from 0"),
    _real("scheduled_s", "when the schedule wanted it sent, since the rung began", "s"),
    _real("sent_s", "when it was sent, since the rung began", "s"),
    _real("first_token_s", "when its first token came, since the rung began", "s"),
    _real("done_s", "when its last token came, since the rung began", "s"),
    _whole("prompt_tokens", "prompt tokens as the server counts them", "tokens"),
    _whole("output_tokens", "generated tokens as the server counts them", "tokens"),
    _whole("cached_tokens", "prompt tokens that the prefix cache held", "tokens"),
    _text("error", "why it failed"),
    Column(
        name="token_gaps_us",
        type=pa.list_(pa.uint32()),
        meaning="gaps between successive streamed tokens; empty where none was kept",
        unit="us",
    ),
    _whole("n", "sequences asked for in this request", "sequences"),
)

ENVIRONMENT_COLUMNS: tuple[Column, ...] = (
    _real("recorded_at", "when it was read, Unix time", "s"),
    _text("node", "machine it is about"),
    _text("key", "what was read"),
    _text("value", "what it was", "JSON"),
)


def _schema(table: str, columns: Iterable[Column]) -> pa.Schema:
    return pa.schema(
        [pa.field(c.name, c.type, metadata={"unit": c.unit, "meaning": c.meaning}) for c in columns],
        metadata={"schema_version": str(SCHEMA_VERSION), "table": table},
    )


TRIALS = _schema("trials", TRIAL_COLUMNS)
RUNGS = _schema("rungs", RUNG_COLUMNS)
REQUESTS = _schema("requests", REQUEST_COLUMNS)
ENVIRONMENT = _schema("environment", ENVIRONMENT_COLUMNS)

TABLES: dict[str, pa.Schema] = {
    "trials": TRIALS,
    "rungs": RUNGS,
    "requests": REQUESTS,
    "environment": ENVIRONMENT,
}
"""Table name -> schema; the table `trials` lies in the folder `trials.parquet`."""
