"""Where all GPU-seconds of a run went: each is start, warm-up, load, idle or dead.

Pure. Trials book what they did (`spec.verdict.Books`); what a search had beyond that, devices x wall seconds, was idle.
On a CPU a device is one rank of an engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from autotune.history.record import TrialRecord
from autotune.history.rundir import RunHeader
from autotune.report.numbers import duration, number, plural
from autotune.report.summary import Spending

Use = Literal["start", "warm_up", "load", "idle", "dead"]

_TOLERANCE_GPU_S = 0.01
"""A header keeps its times to a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBooks:
    """GPU-seconds of all sessions, up to the last trial that ended.

    `dead`: attempts that left no measurement, from their beginning to their end (failed starts, all that is Broken or
    Invalid). `idle`: devices without a trial, engines that stop, and what a trial did besides starting, warming up
    and load; in a run that goes on or was killed, also trials that haven't ended. None = not known: an earlier
    version's run that doesn't say how many devices it had, or simulated engines, whose seconds aren't those of a clock.
    `devices`: of the newest session; `wall_s`: of all.
    """

    devices: int | None
    wall_s: float
    start_gpu_s: float
    warm_up_gpu_s: float
    load_gpu_s: float
    idle_gpu_s: float | None
    dead_gpu_s: float

    @property
    def split(self) -> Mapping[Use, float | None]:
        return {
            "start": self.start_gpu_s,
            "warm_up": self.warm_up_gpu_s,
            "load": self.load_gpu_s,
            "idle": self.idle_gpu_s,
            "dead": self.dead_gpu_s,
        }

    @property
    def total_gpu_s(self) -> float | None:
        """Devices x wall seconds, which the five parts add up to; None where `idle` isn't known."""
        parts = [gpu_s for gpu_s in self.split.values() if gpu_s is not None]
        return None if self.idle_gpu_s is None else math.fsum(parts)

    def share(self, use: Use) -> float | None:
        total, gpu_s = self.total_gpu_s, self.split[use]
        return gpu_s / total if total and gpu_s is not None else None


def gpu_books(records: Iterable[TrialRecord], header: RunHeader) -> GpuBooks:
    """Every attempt of `records` counts. `header` must be as new as they are: it says how long the search took."""
    start, warm_up, load, dead = [0.0], [0.0], [0.0], [0.0]
    for record in records:
        if record.measurement is None:
            dead.append(record.gpus * max(record.books.total_s, record.ended_at - record.started_at))
            continue
        start.append(record.gpus * record.books.start_s)
        warm_up.append(record.gpus * record.books.warm_up_s)
        load.append(record.gpus * record.books.load_s)
        dead.append(record.gpus * record.books.dead_s)
    offered = None if header.options.get("simulate") else header.had_gpu_s
    spare = None if offered is None else offered - math.fsum([*start, *warm_up, *load, *dead])
    return GpuBooks(
        devices=header.had_devices,
        wall_s=header.elapsed_s,
        start_gpu_s=math.fsum(start),
        warm_up_gpu_s=math.fsum(warm_up),
        load_gpu_s=math.fsum(load),
        # More than there was: then the header doesn't tell of all that the records do, and nothing follows from it.
        idle_gpu_s=None if spare is None or spare < -_TOLERANCE_GPU_S else max(0.0, spare),
        dead_gpu_s=math.fsum(dead),
    )


def engines_sentence(spending: Spending) -> str:
    """ "9 engine starts, 55.1 s on average; 3 trials reused a running engine"."""
    starts = plural(spending.engine_starts, "engine start")
    if spending.mean_start_s is not None:
        starts += f", {number(spending.mean_start_s)} s on average"
    return f"{starts}; {plural(spending.engines_reused, 'trial')} reused a running engine"


def total_sentence(books: GpuBooks) -> str:
    """ "1,529 GPU-seconds on 2 devices in 12 min 44 s"; what isn't known is called so."""
    total = "unknown" if books.total_gpu_s is None else number(books.total_gpu_s)
    devices = "an unknown number of devices" if books.devices is None else plural(books.devices, "device")
    return f"{total} GPU-seconds on {devices} in {duration(books.wall_s)}"


def gpu_seconds(books: GpuBooks, use: Use) -> str:
    gpu_s = books.split[use]
    return "unknown" if gpu_s is None else number(gpu_s)


def share(books: GpuBooks, use: Use) -> str:
    """Of all there were: "12.3 %"; "-" where that isn't known."""
    of_all = books.share(use)
    return "-" if of_all is None else f"{100 * of_all:.1f} %"
