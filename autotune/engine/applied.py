"""Whether an engine took the settings it was given: what its log says was asked for, and what it runs with. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ASKED = re.compile(r"non-default args: (\{.*\})")
_CONFIG = re.compile(r"Initializing a V\d LLM engine .*? with config: (.*)")
_CACHE = re.compile(r"vllm:cache_config_info\{([^}]*)\}")

# Key of the request -> keys of the engine's configuration line and of its `cache_config_info` metric.
_NAMES = {
    "kv_cache_dtype": ("kv_cache_dtype", "cache_dtype"),
    "quantization": ("quantization",),
    "enforce_eager": ("enforce_eager",),
    "enable_prefix_caching": ("enable_prefix_caching",),
    "enable_chunked_prefill": ("enable_chunked_prefill",),
}
_LEFT_TO_VLLM = {"auto", "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NotApplied:
    flag: str
    asked: str
    runs_with: str


def not_applied(log: str) -> tuple[NotApplied, ...]:
    """Nothing where the log lacks either side. `fp8` and `fp8_e4m3`, `awq` and `awq_marlin` are the same request."""
    asked = _ASKED.search(log)
    return tuple(_differences(asked[1], log)) if asked else ()


def _differences(asked: str, log: str) -> Iterator[NotApplied]:
    running = [*_CONFIG.findall(log), *_CACHE.findall(log)]
    for key, names in _NAMES.items():
        given = re.search(rf"'{key}': '?([^',}}]+)", asked)
        if not given or given[1].lower() in _LEFT_TO_VLLM:
            continue
        for name in names:
            found = next((m for text in running if (m := re.search(rf'\b{name}="?([^",]+)', text))), None)
            if found and not _same(given[1], found[1]):
                yield NotApplied(flag=key.replace("_", "-"), asked=given[1], runs_with=found[1])
                break


def _same(asked: str, runs_with: str) -> bool:
    one, other = asked.lower(), runs_with.lower()
    return one.startswith(other) or other.startswith(one)
