"""How vLLM, torch, Ray and the hub word each class of failure, and what to do about it. Sources: docs/failures.md."""

from __future__ import annotations

import re
from dataclasses import dataclass

OOM = "oom"
"""Stands for the `oom.` class of the stage it happened in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Named groups of the pattern become facts: numbers, with units in their names."""

    cause: str
    pattern: re.Pattern[str]


def _rule(cause: str, *patterns: str) -> Rule:
    return Rule(cause=cause, pattern=re.compile("|".join(patterns), re.IGNORECASE))


# In order: of two rules that fit one line, the first wins.
RULES: tuple[Rule, ...] = (
    _rule(
        "infra.gpu_busy",
        r"(?:free|available) memory on \w.*?\((?P<free_gib>[\d.]+)/(?P<device_gib>[\d.]+) ?GiB\)"
        r".*?less than desired.*?\((?P<utilization>[\d.]+), ?(?P<wanted_gib>[\d.]+) ?GiB\)",
    ),
    # The CPU build. A cache of a size that was asked for, or one that the weights left nothing for, is the candidate's.
    _rule(
        "capacity.no_kv_blocks",
        r"available memory on node \d+ \((?P<available_gib>[\d.]+)/(?P<device_gib>[\d.]+) ?GiB\) on kv cache allocation"
        r".*?requested memory for kv \((?P<needed_gib>[\d.]+) ?GiB\)",
    ),
    _rule("capacity.no_kv_blocks", r"requested memory for kv \((?P<available_gib>-[\d.]+)/"),
    _rule(
        "infra.gpu_busy",
        r"on kv cache allocation is less than requested",
        r"devices?(?:\(s\))? is/are busy or unavailable",
        r"free memory on .*less than desired",
    ),
    _rule("infra.profiling_race", r"error in memory profiling", r"release GPU memory while vLLM is profiling"),
    _rule(
        "infra.port_race",
        r"address already in use",
        r"EADDRINUSE",
        r"\[Errno 98\]",
        r"server socket has failed to (?:listen|bind)",
    ),
    _rule(
        "infra.host_oom",
        r"Ray killed this worker",
        r"exceeds the memory usage threshold",
        r"killed due to memory pressure",
        r"\[Errno 12\]|cannot allocate memory",
        r"No space left on device.*shm",
    ),
    _rule(
        "infra.hub",
        r"HfHubHTTPError",
        r"(?:429|50\d) (?:Client|Server) Error.*for url",
        r"couldn't connect to .?https?://",
        r"LocalEntryNotFoundError|OfflineModeIsEnabled",
        r"Max retries exceeded with url",
        r"ConnectionError.*(?:huggingface|modelscope|hf\.co)",
    ),
    _rule(
        "infra.cache",
        r"corrupted compilation artifact",
        r"(?:corrupt|truncated|stale)\w* .*(?:compile|inductor|triton) cache",
    ),
    _rule(
        "infra.node_lost",
        r"\bnode\b.*(?:(?:has been|was) marked dead|is dead|\bdied\b)",
        r"remote process exited or there was a network error",
    ),
    _rule(
        "capacity.kv_too_small",
        r"max seq len \((?P<max_model_len>\d+)\) is larger than the maximum number of tokens"
        r" that can be stored in KV cache \((?P<kv_cache_tokens>\d+)\)",
    ),
    _rule(
        "capacity.kv_too_small",
        r"max seq len \((?P<max_model_len>\d+)\).*?\((?P<needed_gib>[\d.]+) ?GiB KV cache is needed"
        r".*?available KV cache memory \((?P<available_gib>-?[\d.]+) ?GiB\)"
        r"(?:.*?estimated maximum model length is (?P<max_model_len_bound>\d+))?",
        r"KV cache is (?:needed|required).*larger than the available",
    ),
    _rule(
        "capacity.no_kv_blocks",
        r"No available memory for the cache blocks",
        r"not enough memory .*(?:any|even one|a single) (?:KV )?cache block",
    ),
    _rule(
        "capacity.state_blocks",
        r"max_num_seqs \((?P<max_num_seqs>\d+)\) exceeds available \w+ cache blocks \((?P<max_num_seqs_bound>\d+)\)",
    ),
    _rule(
        "oom.sampler_warmup",
        r"out of memory occurred when warming up sampler(?: with (?P<max_num_seqs>\d+) dummy requests)?",
    ),
    _rule(
        OOM,
        r"out of memory.*?Tried to allocate (?P<tried>[\d.]+ [KMG]iB)"
        r"(?:.*?total capacity of (?P<device_gib>[\d.]+) GiB of which (?P<free>[\d.]+ [KMG]iB) is free)?",
    ),
    _rule(
        OOM,
        r"(?:CUDA|HIP|XPU) (?:error: )?out of memory",
        r"OutOfMemoryError",
        r"CUBLAS_STATUS_ALLOC_FAILED",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
        r"std::bad_alloc",
        r"^MemoryError\b",
    ),
    _rule(
        "env.missing_dependency",
        r"(?:ImportError|ModuleNotFoundError): ",
        r"\bis required .*\binstall\b",
        r"please (?:pip )?install\b",
        r"cannot open shared object file",
    ),
    _rule(
        "config.conflict",
        r"is only supported with\b",
        r"\bcan ?(?:no|')t be (?:used|enabled|set|combined|specified)\b.*\b(?:with|together|both|at the same time)\b",
        r"\b(?:is|are) (?:not compatible|incompatible) with\b",
        r"not supported (?:together |in combination |when |if |while )",
        r"mutually exclusive",
        r"max_num_batched_tokens.*\b(?:smaller|less|greater|larger) than\b.*(?:max_model_len|max_num_seqs)",
        r"does not match the quantization method specified",
        r"\bnot allowed with argument\b",
    ),
    _rule(
        "config.unsupported",
        r"No valid attention backend",
        r"No common block size",
        r"(?:is|are|was) not (?:yet )?supported\b",
        r"\bunsupported\b",
        r"\b(?:does|do)(?: not|n't) (?:yet )?support\b",
        r"\bnot implemented\b",
        r"NotImplementedError",
        r"must be divisible by|is not divisible by|not a multiple of|must be a multiple of",
        r"(?:minimum|requires?) .*capability",
        r"no kernel image is available",
        r"could not run '.*' with arguments from the",
        r"\b_\w*C(?:_\w+)?::\w+\(\) expected",  # a kernel that this build declares but doesn't have
        r"'_OpNamespace' .* has no attribute",
        r"invalid literal for int\(\) with base 10: 'MIG-",
        r"Supported dtypes: \[",
    ),
    _rule(
        "config.invalid",
        r"unrecognized arguments?: --",
        r"error: argument \S+",
        r"invalid choice: ",
        r"ignored explicit argument",
        r"expected (?:one|at least one) argument",
        r"unexpected keyword argument",
        r"is greater than the derived max_model_len",
        r"^Value error, ",
        r"^Input should be ",
        r"No compilation mode is set",
        r"is not a (?:valid|local folder)",
        r"\bunknown (?:quantization|vLLM|attention|speculative|model)",
        r"Repo(?:sitory)?NotFoundError|GatedRepoError|does not appear to have a file named",
        r"(?:No such file or directory|FileNotFoundError): .*(?:config|model|safetensors)",
    ),
)

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
    "env.missing_dependency": "install what is named into the environment of --vllm-python",
    "infra.gpu_busy": "find what else holds the GPU's memory; a lasting gap needs a lower gpu-memory-utilization",
    "infra.profiling_race": "another process freed or took memory meanwhile; start one engine per GPU at a time",
    "infra.port_race": "none needed: it is retried on another port",
    "infra.host_oom": "start fewer engines at once, or give the host more memory",
    "infra.hub": "download the model first and give its path, or set HF_HUB_OFFLINE=1",
    "infra.cache": "clear vLLM's compile cache (VLLM_CACHE_ROOT)",
    "infra.node_lost": "see why the node went; the trial is retried",
    "infra.cancelled": "none: the search was stopped",
    "hang.startup": "see the end of the engine's log; NCCL_DEBUG=INFO shows where a collective waits",
    "hang.runtime": "see the end of the engine's log",
    "unknown": "read the engine's log; please report it, so that it gets a class",
}
"""Every class there is, with what a user can do about it."""
