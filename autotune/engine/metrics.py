"""/metrics of vLLM as one `EngineSample`. Names move between versions; a metric that isn't there is None, never 0."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from autotune.spec.measurement import EngineSample

ALIASES: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    # Renamed in 0.10 (https://github.com/vllm-project/vllm/pull/18354); for two releases both were there.
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "prefix_queries": (
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
        "vllm:prefix_cache_queries",
        "vllm:gpu_prefix_cache_queries",
    ),
    "prefix_hits": (
        "vllm:prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits_total",
        "vllm:prefix_cache_hits",
        "vllm:gpu_prefix_cache_hits",
    ),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "requests_done": ("vllm:request_success_total",),
    # Renamed in 0.11 (https://github.com/vllm-project/vllm/pull/24110); hidden later, then gone.
    "inter_token_s": ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
    "inter_tokens": ("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
}
"""Field of `EngineSample` -> sample names, newest first. Exactly one is read: an overlap isn't counted twice."""

_FOLD: dict[str, Callable[[Iterable[float]], float]] = {"kv_cache_usage": max}
_WANTED = tuple(name for names in ALIASES.values() for name in names)


def parse_metrics(text: str, at_s: float) -> EngineSample:
    """Several engines' (data parallel) values are summed, their KV usage is the fullest one's.

    Only the wanted lines reach the parser: the whole page (50 kB of histograms) would take it 20 times as long. Raises
    ValueError on text that isn't Prometheus'.
    """
    values = _values(text)
    found: dict[str, Any] = {}
    for name, alias in _sources(values).items():
        if alias is not None and math.isfinite(value := _FOLD.get(name, math.fsum)(values[alias])):
            found[name] = value
    return EngineSample(at_s=at_s, **found)


def metric_sources(text: str) -> dict[str, str | None]:
    """Which of its names each field is read from; None where this page has none of them. Raises as `parse_metrics`."""
    return _sources(_values(text))


def missing_metrics(sources: Mapping[str, str | None]) -> str | None:
    """A warning about those without a source, with the names that were looked for; None when there are none."""
    missing = [f"{name} (looked for {', '.join(ALIASES[name])})" for name, alias in sources.items() if alias is None]
    if not missing:
        return None
    return f"this vLLM exports nothing for {'; '.join(missing)}: what rests on it is unknown, not 0"


def _sources(values: Mapping[str, Sequence[float]]) -> dict[str, str | None]:
    return {name: next((alias for alias in aliases if alias in values), None) for name, aliases in ALIASES.items()}


def _values(text: str) -> dict[str, list[float]]:
    lines = [line for line in text.splitlines() if line.startswith(_WANTED)]
    values: dict[str, list[float]] = defaultdict(list)
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            values[sample.name].append(sample.value)
    return values
