"""The classes of failure (docs/failures.md), with what a user can do about each."""

from __future__ import annotations

from autotune.spec.flag_changes import REPLACED
from autotune.spec.verdict import Bound, EngineFailure

REMEDIES: dict[str, str] = {
    "capacity.kv_too_small": "lower max-model-len, raise gpu-memory-utilization or use more GPUs per engine",
    "capacity.no_kv_blocks": "raise gpu-memory-utilization, lower max-num-batched-tokens, quantize or use more GPUs",
    "capacity.state_blocks": "lower max-num-seqs to the number of state blocks, or max-model-len",
    "oom.weights": "the weights don't fit: quantize or use more GPUs per engine",
    "oom.profiling": "lower max-num-batched-tokens or gpu-memory-utilization",
    "oom.sampler_warmup": "lower max-num-seqs or gpu-memory-utilization",
    "oom.graph_capture": "lower gpu-memory-utilization or max-cudagraph-capture-size, or use enforce-eager",
    "oom.runtime": "lower gpu-memory-utilization: it started, but has no room for its peak load",
    "config.invalid": "correct the value in the space",
    "config.unsupported": "take this value out of the space: this model, GPU or build of vLLM can't do it",
    "config.conflict": "add a condition or a rule to the space that keeps these two flags apart",
    "config.not_applied": "vLLM took another value than it was given; search the value it takes",
    "env.missing_dependency": "install what is missing into the environment of --vllm-python",
    "infra.gpu_busy": "find what else holds the GPU's memory; a lasting gap needs a lower gpu-memory-utilization",
    "infra.profiling_race": "another process freed or took memory meanwhile; start one engine per GPU at a time",
    "infra.port_race": "none needed: it is retried on another port",
    "infra.host_oom": "start fewer engines at once, or give the host more memory",
    "infra.hub": "download the model first and give its path, or set HF_HUB_OFFLINE=1",
    "infra.cache": "clear the compile cache that you set (VLLM_CACHE_ROOT); vtune clears its own",
    "infra.node_lost": "see why the node went; the trial is retried",
    "infra.cancelled": "none: the search was stopped",
    "hang.startup": "see the end of the engine's log: it hung there, unless it was killed; NCCL_DEBUG=INFO shows where"
    " a collective waits",
    "hang.runtime": "see the end of the engine's log",
    "unknown": "read the engine's log; please report it, so that it gets a class",
}
"""Every class there is, with what a user can do about it."""


def remedy(failure: EngineFailure) -> str:
    """What to do about this one: the class's remedy, with what the failure itself says."""
    general = REMEDIES.get(failure.cause, REMEDIES["unknown"])
    for bound in failure.bounds:
        if bound.unknown:
            return (
                f"this vLLM has no flag {bound.flag}: {REPLACED.get(bound.flag, 'see `vtune flags` for those it has')}"
            )
    if failure.cause == "env.missing_dependency" and failure.words.get("package"):
        general += f": {', '.join(failure.words['package'])}"
    said = "; ".join(bound_text(bound) for bound in failure.bounds)
    return f"{general} ({said})" if said else general


def bound_text(bound: Bound) -> str:
    """`max-model-len at most 34736`, with the condition where there is one."""
    parts = []
    for words, value in (
        ("at most", bound.at_most),
        ("below", bound.below),
        ("at least", bound.at_least),
        ("above", bound.above),
        ("a divisor of", bound.divides),
    ):
        if value is not None:
            parts.append(f"{words} {value:.10g}")
    if bound.raise_by_gib is not None:
        parts.append(f"higher by {bound.raise_by_gib:.10g} GiB of the device's memory")
    if bound.one_of is not None:
        parts.append(f"one of {', '.join(bound.one_of)}")
    if bound.none_of is not None:
        parts.append(f"not {', '.join(bound.none_of)}")
    if bound.unknown:
        parts.append("not known to this vLLM")
    condition = f", where {bound.when}" if bound.when else ""
    return f"{bound.flag} {' and '.join(parts)}{condition}"
