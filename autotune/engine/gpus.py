"""The machine's GPUs through NVML. No NVML, or no GPU, is an empty list, never an error."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger(__name__)
_GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """`index` as NVML counts (PCI order, all of the machine's)."""

    index: int
    name: str
    uuid: str
    total_gib: float
    driver: str
    compute_capability: str


@contextmanager
def _nvml() -> Iterator[Any]:
    """pynvml, initialised; None where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # pynvml's error classes exist only where it can be imported
        _log.debug("no NVML: %s", error)
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def all_gpus() -> tuple[Gpu, ...]:
    with _nvml() as nvml:
        if nvml is None:
            return ()
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            found.append(
                Gpu(
                    index=index,
                    name=_text(nvml.nvmlDeviceGetName(handle)),
                    uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                    total_gib=nvml.nvmlDeviceGetMemoryInfo(handle).total / _GIB,
                    driver=driver,
                    compute_capability=f"{major}.{minor}",
                )
            )
        return tuple(found)


def visible(gpus: Sequence[Gpu], env: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES lets a process see, in its order; all of them where it isn't set.

    It names them by index or by (the beginning of) UUID; as in CUDA, the first name that fits none ends the list.
    """
    given = env.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for word in (part.strip() for part in given.split(",")):
        gpu = find(gpus, word)
        if gpu is None:
            break
        chosen.append(gpu)
    return tuple(chosen)


def find(gpus: Sequence[Gpu], name: str) -> Gpu | None:
    """The GPU with this index or this (beginning of a) UUID; None for neither, and for an ambiguous beginning."""
    if name.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(name)), None)
    fitting = [gpu for gpu in gpus if name.startswith("GPU-") and gpu.uuid.startswith(name)]
    return fitting[0] if len(fitting) == 1 else None


def used_gib(devices: Sequence[str]) -> dict[str, float]:
    """Memory in use on each of these GPUs (index or UUID), by whatever process; GPUs NVML doesn't know are left out."""
    gpus = all_gpus()
    with _nvml() as nvml:
        if nvml is None:
            return {}
        found = {name: find(gpus, name) for name in devices}
        return {
            name: nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(gpu.index)).used / _GIB
            for name, gpu in found.items()
            if gpu is not None
        }


def wait_for_memory_back(
    before: Mapping[str, float], *, timeout_s: float = 30.0, tolerance_gib: float = 0.5
) -> dict[str, float]:
    """Waits until every GPU uses at most what it did `before` (plus the tolerance).

    Returns the GiB still missing per GPU (empty = all back). By amounts, since a container may not see the processes.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        now = used_gib(list(before))
        missing = {name: now[name] - before[name] for name in now if now[name] > before[name] + tolerance_gib}
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(0.1)


_HELD_DOWN = {
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}
"""Bits of nvmlClocksEventReasons (NVML API reference) that lie in heat or a fault. The software power cap (0x04) isn't
one: a GPU at its power limit runs as fast as it was sold to, under every candidate alike."""


def reasons_of(bits: int) -> tuple[str, ...]:
    return tuple(name for bit, name in _HELD_DOWN.items() if bits & bit)


def throttled_by(devices: Sequence[str]) -> tuple[str, ...]:
    """Why clocks of any of these GPUs (index or UUID) are held down now; empty where they aren't, or NVML can't say."""
    gpus = all_gpus()
    with _nvml() as nvml:
        if nvml is None:
            return ()
        bits = 0
        for gpu in (find(gpus, name) for name in devices):
            if gpu is None:
                continue
            try:
                bits |= nvml.nvmlDeviceGetCurrentClocksThrottleReasons(nvml.nvmlDeviceGetHandleByIndex(gpu.index))
            except nvml.NVMLError as error:
                _log.debug("no throttle reasons for GPU %s: %s", gpu.index, error)
        return reasons_of(bits)
