"""How vLLM, torch, Ray and the hub word what isn't the candidate's doing: other processes, the host, the network."""

from __future__ import annotations

from autotune.engine.failure_rule import Rule, rule

SURROUNDINGS_RULES: tuple[Rule, ...] = (
    rule(
        "infra.gpu_busy",
        r"(?:free|available) memory on \w.*?\((?P<free_gib><N>)/(?P<device_gib><N>) ?GiB\)"
        r".*?less than (?:the )?(?:desired|requested).*?\((?P<utilization><N>), ?(?P<wanted_gib><N>) ?GiB\)",
    ),
    rule(
        "infra.gpu_busy",
        r"on kv cache allocation is less than requested",
        r"No CUDA GPUs are available|no CUDA-capable device is detected|CUDA driver initialization failed",
        r"devices?(?:\(s\))? is/are busy or unavailable",
        r"free memory on .*less than (?:desired|requested)",
    ),
    rule(
        "infra.profiling_race",
        r"error in memory profiling(?:\. initial free memory (?P<free_before_gib><N>) ?GiB, current free memory"
        r" (?P<free_after_gib><N>) ?GiB)?",
        r"release GPU memory while vLLM is profiling",
    ),
    rule(
        "infra.port_race",
        r"server socket has failed to (?:listen|bind)\b(?:.*?\bport: (?P<port>\d+))?",
        r"address already in use",
        r"EADDRINUSE",
        r"\[Errno 98\]",
    ),
    rule(
        "infra.host_oom",
        r"(?P<used_gb><N>) ?GB ?/ ?(?P<host_gb><N>) ?GB \([\d.]+\), which exceeds the memory usage threshold",
        r"Ray killed this worker",
        r"exceeds the memory usage threshold",
        r"killed due to memory pressure",
        r"\boom-kill|out of memory: killed process",
        r"\[Errno 12\]|cannot allocate memory",
        r"No space left on device.*shm|unable to (?:mmap|allocate).*shared memory",
    ),
    rule(
        "infra.hub",
        r"(?P<http_status>429|50\d) (?:Client|Server) Error.*for url",
        r"HfHubHTTPError",
        r"couldn't connect to .?https?://",
        r"LocalEntryNotFoundError|OfflineModeIsEnabled",
        r"Max retries exceeded with url",
        r"(?:ConnectionError|ReadTimeout|ConnectTimeout|NameResolutionError).*(?:huggingface|modelscope|hf\.co)",
    ),
    rule(
        "infra.cache",
        r"corrupt(?:ed)? compilation artifact",
        r"(?:corrupt|truncated|stale)\w* .*(?:compile|inductor|triton) cache",
        # A generated module that was cut off (torch/_inductor/runtime/compile_tasks.py); others are compiled again.
        r"Failed to import \S*(?:inductor|torch_compile_cache)\S*\.py\b",
        r"module 'torch\._inductor\.runtime\.compile_tasks\.\w+' has no attribute",
    ),
    rule(
        "infra.node_lost",
        r"\bnode\b.*(?:(?:has been|was) marked dead|is dead|\bdied\b|has failed)",
        r"remote process exited or there was a network error",
        r"\b(?:ActorDiedError|ActorUnavailableError|NodeDiedError)\b",
    ),
)
