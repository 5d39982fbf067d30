"""/metrics of vLLM as one `EngineSample`. Names move between versions; a metric that isn't there is None, never 0."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
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
}
"""Field of `EngineSample` -> sample names, newest first. Exactly one is read: an overlap isn't counted twice."""

_FOLD: dict[str, Callable[[Iterable[float]], float]] = {"kv_cache_usage": max}
_WANTED = tuple(name for names in ALIASES.values() for name in names)


def parse_metrics(text: str, at_s: float) -> EngineSample:
    """Several engines' (data parallel) values are summed, their KV usage is the fullest one's.

    Only the wanted lines reach the parser: the whole page (50 kB of histograms) would take it 20 times as long. Raises
    ValueError on text that isn't Prometheus'.
    """
    lines = [line for line in text.splitlines() if line.startswith(_WANTED)]
    values: dict[str, list[float]] = defaultdict(list)
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            values[sample.name].append(sample.value)
    found: dict[str, Any] = {}
    for name, aliases in ALIASES.items():
        given = next((values[alias] for alias in aliases if alias in values), None)
        if given:
            value = _FOLD.get(name, math.fsum)(given)
            if math.isfinite(value):
                found[name] = value
    return EngineSample(at_s=at_s, **found)
