"""What a vLLM start log says: how far the start got, and its figures, as vLLM 0.20 to 0.32 word them.

Pure. Lines may carry any prefix (time, `(EngineCore pid=1)`, level, `[file.py:12]`); several ranks may write into one
log, each for its own GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, get_args

from autotune.engine.log_lines import log_lines, unfolded
from autotune.spec.measurement import StartFacts

Stage = Literal[
    "imports", "config", "distributed", "weights", "compile", "profiling", "kv_cache", "graphs", "warm_up", "ready"
]
STAGES: tuple[str, ...] = get_args(Stage)

_WORDINGS: tuple[tuple[Stage, str], ...] = (
    (
        "ready",
        r"Application startup complete|Avg (?:prompt|generation) throughput: |\"(?:GET|POST) /\S* HTTP/1\.\d\" \d{3}",
    ),
    ("warm_up", r"init engine \(profile|Starting vLLM (?:API )?server|Warming up sampler|Graph capturing finished"),
    ("graphs", r"Capturing CUDA graph"),
    (
        "kv_cache",
        r"(?:GPU|CPU) KV cache size|Available KV cache memory|(?:Explicitly|Auto) set \(.* for KV cache"
        r"|# (?:GPU|CUDA) blocks",
    ),
    ("profiling", r"torch\.compile took|Initial profiling|Profiling CUDA graph memory|[Mm]emory profiling takes"),
    ("compile", r"torch\.compile takes|Dynamo bytecode|Compiling a graph|Using cache directory: .*torch_compile"),
    ("compile", r"Cache the graph|Directly load|Warming up model for the compilation"),
    # What follows the weights is profiling, unless compilation says otherwise.
    ("profiling", r"Model loading took|Loading (?:model )?weights took"),
    ("weights", r"Starting to load model|Loading safetensors|Loading pt checkpoint|Using .* attention backend"),
    ("weights", r"Initializing model took|Loading weights|Checkpoint size"),
    (
        "distributed",
        r"world_size=\d+ rank=\d+|vLLM is using nccl|Initializing a V\d LLM engine|rank \d+ in world size",
    ),
    ("config", r"non-default args|vLLM API server version|█ +version \d|Resolved architecture|Using max model len"),
)
_STAGE_LINES = tuple((stage, re.compile(pattern)) for stage, pattern in _WORDINGS)
_SPEAKS_OF_ERROR = re.compile(r"\b(?:ERROR|WARNING|CRITICAL)\b|Traceback|^\s*File \"|(?:Error|Exception): ")


def stage_of_line(line: str) -> Stage | None:
    """The stage that this line shows the start to be in; None for a line that doesn't say."""
    if _SPEAKS_OF_ERROR.search(line):
        return None
    return next((stage for stage, pattern in _STAGE_LINES if pattern.search(line)), None)


def stage_of_reading(readings: Iterable[str]) -> Stage | None:
    """That of a line which may have been folded (`log_lines`)."""
    return next((stage for line in readings if (stage := stage_of_line(line))), None)


def stage_reached(text: str) -> Stage:
    """The last stage that the log entered."""
    stage: Stage = "imports"
    for line in log_lines(text):
        stage = stage_of_reading(line.readings) or stage
    return stage


_NUMBER = r"(-?[\d,]+(?:\.\d+)?)"
_FIGURES: dict[str, tuple[str, ...]] = {
    "weights_gib": (rf"Model loading took {_NUMBER} Gi?B",),
    "kv_cache_gib": (
        rf"Available KV cache memory: {_NUMBER} GiB",
        rf"(?:Explicitly|Auto) set \({_NUMBER}/[\d.]+\) GiB for KV cache",
    ),
    "kv_cache_tokens": (rf"(?:GPU|CPU) KV cache size: {_NUMBER} tokens",),
    "max_concurrency": (rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x",),
    "compile_s": (rf"torch\.compile (?:took|takes) {_NUMBER} s",),
    "graphs_s": (rf"Graph capturing finished in {_NUMBER} secs?",),
    "graphs_gib": (rf"Graph capturing finished in [\d.]+ secs?, took {_NUMBER} Gi?B",),
    "graphs_truncated_to": (rf"Truncating max_cudagraph_capture_size to {_NUMBER}",),
    "engine_init_s": (rf"init engine \(.*?\) took {_NUMBER} s",),
}
# Of several ranks' figures: the one that limits the engine (the least cache, the most of anything that is used).
_LEAST = {"kv_cache_gib", "kv_cache_tokens", "max_concurrency", "graphs_truncated_to"}
_VERSION = re.compile(r"(?:█ +version |LLM engine \(v|vLLM API server version )(\d[\w.+]*)")


def read_facts(text: str) -> StartFacts:
    """Figures are per GPU; where ranks differ, the smallest cache and the largest weights, times and graphs.

    A compiled model may report one `torch.compile` line per part; each rank's own figure is the total.
    """
    text = unfolded(text)
    found: dict[str, float] = {}
    for name, patterns in _FIGURES.items():
        for pattern in patterns:
            values = [float(match.replace(",", "")) for match in re.findall(pattern, text)]
            if values:
                found[name] = min(values) if name in _LEAST else max(values)
                break
    version = _VERSION.search(text)
    tokens, truncated = found.get("kv_cache_tokens"), found.get("graphs_truncated_to")
    return StartFacts(
        weights_gib=found.get("weights_gib"),
        kv_cache_gib=found.get("kv_cache_gib"),
        kv_cache_tokens=None if tokens is None else int(tokens),
        max_concurrency=found.get("max_concurrency"),
        compile_s=found.get("compile_s"),
        graphs_s=found.get("graphs_s"),
        graphs_gib=found.get("graphs_gib"),
        engine_init_s=found.get("engine_init_s"),
        graphs_truncated_to=None if truncated is None else int(truncated),
        vllm_version=version[1] if version else None,
    )


_COMPILED = re.compile(r"\[jit_monitor\.py:\d+\] (.* during inference: .*)")


def compilations(text: str) -> tuple[str, ...]:
    """What vLLM (0.24 on; vllm/utils/jit_monitor.py) says about kernels compiled while it serves, a line for each."""
    return tuple(_COMPILED.findall(text))
