"""How vLLM and torch word a lack of memory that is the candidate's own doing."""

from __future__ import annotations

from autotune.engine.failure_rule import OOM, Rule, rule

_LARGER = r"(?:larger|greater|longer|more|bigger) than|exceeds?"

CAPACITY_RULES: tuple[Rule, ...] = (
    # The CPU build. A cache of a size that was asked for, or one that the weights left nothing for, is the candidate's.
    rule(
        "capacity.no_kv_blocks",
        r"available memory on node \d+ \((?P<available_gib><G>)/(?P<device_gib><N>) ?GiB\) on kv cache allocation"
        r".*?requested memory for kv \((?P<needed_gib><N>) ?GiB\)",
    ),
    rule("capacity.no_kv_blocks", r"requested memory for kv \((?P<available_gib>-<N>)/"),
    rule(
        "capacity.kv_too_small",
        r"max(?:imum)? (?:seq(?:uence)?|model) len(?:gth)? \((?P<max_model_len><N>)\).*?(?:" + _LARGER + r")"
        r".*?tokens\b.*?KV cache \((?P<kv_cache_tokens><N>)\)",
    ),
    rule(
        "capacity.kv_too_small",
        r"(?:\((?P<max_model_len><N>)\)\D*?)?\(?(?P<needed_gib><N>) ?GiB (?:of )?KV cache (?:memory )?"
        r"is (?:needed|required)"
        r".*?available KV cache memory \((?P<available_gib><G>) ?GiB\)"
        r"(?:.*?estimated max(?:imum)? model len(?:gth)? is (?P<max_model_len_bound><N>))?",
    ),
    rule(
        "capacity.kv_too_small",
        r"KV cache (?:memory )?(?:is )?(?:needed|required)\b.*(?:" + _LARGER + r").*available",
        r"max(?:_model_len|imum model length|imum sequence length| seq len)\b.*(?:" + _LARGER + r").*\bKV cache\b",
    ),
    rule(
        "capacity.no_kv_blocks",
        r"no (?:available )?memory (?:is )?(?:available |left )?for (?:the )?(?:KV )?cache",
        r"not enough (?:GPU )?memory .*(?:any|even one|a single) (?:KV )?(?:cache block|token)",
        r"available KV cache memory (?:is|must be) (?:negative|positive|<= ?0)",
    ),
    rule(
        "capacity.state_blocks",
        r"max_num_seqs \((?P<max_num_seqs><N>)\) (?:is )?(?:" + _LARGER + r") (?:the )?(?:number of )?available"
        r" [\w-]+ (?:cache |state )*blocks \((?P<max_num_seqs_bound><N>)\)",
    ),
    rule("capacity.state_blocks", r"max_num_seqs\b.*(?:" + _LARGER + r").*\b(?:mamba|ssm|gdn|state)\b.*\bblocks\b"),
)

OOM_RULES: tuple[Rule, ...] = (
    rule(
        "oom.sampler_warmup",
        r"out of memory\b.*\bwarm(?:ing)?[ -]?up (?:the )?(?:sampler|pooler)"
        r"(?:[^.]*? with (?P<max_num_seqs><N>) dummy requests)?",
    ),
    rule(
        OOM,
        r"out of memory.*?Tried to allocate (?P<tried>[\d.]+ [KMG]iB)"
        r"(?:.*?total capacity of (?P<device_gib><N>) GiB of which (?P<free>[\d.]+ [KMG]iB) is free)?",
    ),
    rule(
        OOM,
        r"(?:CUDA|HIP|XPU) (?:(?:driver )?error: )?(?:\d+ )?out of memory",
        r"OutOfMemoryError",
        r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory",
        r"CUBLAS_STATUS_ALLOC_FAILED",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
        r"std::bad_alloc",
        r"^MemoryError\b",
    ),
)
