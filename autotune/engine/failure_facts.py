"""The numbers and words of a failure: those of its own line, and the figures that the log gave before it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_IN_GIB = {"KiB": 1 / 1024**2, "MiB": 1 / 1024, "GiB": 1.0}
_KV = re.compile(r"Available KV cache memory: (-?[\d.]+) GiB")
_WEIGHTS = re.compile(r"Model loading took ([\d.]+) Gi?B")
_DEVICE = re.compile(
    r"total capacity of ([\d.]+) GiB|\([\d.]+/([\d.]+)\) GiB for KV cache|\([\d.]+/([\d.]+) GiB\) on startup"
)
_UTILIZATION = re.compile(r"'gpu_memory_utilization': ([\d.]+)|current --gpu-memory-utilization=([\d.]+)")
_GRAPHS_SHARE = re.compile(
    r"current --gpu-memory-utilization=([\d.]+) is equivalent to --gpu-memory-utilization=([\d.]+) without"
)
_GRAPHS_GIB = re.compile(r"Estimated CUDA graph memory: ([\d.]+) GiB")


def facts_of(
    match: re.Match[str] | None, log: str, *, device_gib: float | None = None
) -> tuple[dict[str, float], dict[str, tuple[str, ...]]]:
    """Numbers with their unit in their name, and words: lists are split at commas, `torch.` is left out.

    `device_gib` is taken where the log doesn't state it.
    """
    numbers: dict[str, float] = {}
    words: dict[str, tuple[str, ...]] = {}
    for name, text in ({} if match is None else match.groupdict()).items():
        if text is None:
            continue
        if name in ("tried", "free"):
            number, unit = text.split()
            numbers[f"{name}_gib"] = float(number) * _IN_GIB[unit]
        elif re.fullmatch(r"-?\d[\d,]*(?:\.\d+)?", text):
            numbers[name] = float(text.replace(",", ""))
        elif name == "reasons":
            words[name] = tuple(found.strip() for found in re.findall(r"[\w.]+: \[[^\]]*\]", text))
        else:
            parts = (part.strip(" '\"").removeprefix("torch.") for part in text.split(","))
            words[name] = tuple(part for part in parts if part)
    _add_logged(numbers, log)
    if "device_gib" not in numbers:
        estimated_gib = estimated_device_gib(log)
        if device_gib is not None:
            numbers["device_gib"] = device_gib
        elif estimated_gib is not None:
            numbers["device_gib_estimated"] = round(estimated_gib, 1)
    if "needed_gib" not in numbers and numbers.get("available_gib", 0) > 0 and numbers.get("kv_cache_tokens"):
        # The oldest wording of kv_too_small counts tokens only.
        numbers["needed_gib"] = numbers["available_gib"] * numbers["max_model_len"] / numbers["kv_cache_tokens"]
    return numbers, words


def _add_logged(numbers: dict[str, float], log: str) -> None:
    """What the log said on the way. Of several ranks: the least cache, the most weights."""
    kv, weights = _KV.findall(log), _WEIGHTS.findall(log)
    if kv:
        numbers.setdefault("available_gib", min(map(float, kv)))
    if weights:
        numbers.setdefault("weights_gib", max(map(float, weights)))
    for name, pattern in (("device_gib", _DEVICE), ("utilization", _UTILIZATION)):
        found = pattern.search(log)
        if found:
            numbers.setdefault(name, float(next(value for value in found.groups() if value)))


def estimated_device_gib(log: str) -> float | None:
    """GiB of the GPU, to a few per cent, from what vLLM (0.21 on) says graphs take as a share and in GiB."""
    share, graphs = _GRAPHS_SHARE.search(log), _GRAPHS_GIB.search(log)
    if not share or not graphs:
        return None
    difference = float(share[1]) - float(share[2])
    return float(graphs[1]) / difference if difference > 0.001 else None


def stated_device_gib(log: str) -> float | None:
    """GiB of the GPU (of the host, on a CPU), where the log says it outright."""
    found = _DEVICE.search(log)
    return float(next(value for value in found.groups() if value)) if found else None


def shortfall(facts: Mapping[str, float]) -> float:
    """Missing GiB / device GiB in [0, 1]; 0 when either isn't known."""
    device_gib = facts.get("device_gib")
    if not device_gib or "wanted_gib" in facts:
        return 0.0
    if "tried_gib" in facts and "free_gib" in facts:
        missing_gib = facts["tried_gib"] - facts["free_gib"]
    elif "available_gib" in facts:
        missing_gib = facts.get("needed_gib", 0.0) - facts["available_gib"]
        if "needed_gib" not in facts and facts["available_gib"] > 0:
            return 0.0
    else:
        return 0.0
    return min(max(missing_gib / device_gib, 0.0), 1.0)
