"""How often a CPU engine stands still under load: plain vLLM, which polls with sched_yield, and the fork server's.

`python -m benchmarks.standstill [--quick]`. The default of tiny-cpu is started once plainly and once by the fork
server; each runs `RUNGS` rungs of its closed loop of 32, for 3 s or more. Beside it a process reads every task's
`/proc/*/stat` twelve times a second, as a monitor does: that alone brings the stalls out where the kernel has them.
A rung stood still when no token of any request came for `STILL_S`. What is measured depends on the kernel, which is a
column of the raw data.

- `stood_still_plain`, `stood_still_fork_server`: such rungs, of `rungs` each.
- `longest_s_plain`, `longest_s_fork_server`: the longest time without a token.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from autotune.engine.catalogue import read_catalogue
from autotune.engine.fork_server import ForkServer
from autotune.engine.model_files import resolve_model
from autotune.engine.vllm import VllmLauncher
from autotune.load.http import HttpLoader
from autotune.load.statistics import token_times
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import RequestRecord
from autotune.spec.problem import Problem
from autotune.spec.space_file import Overrides, parse_problem, read_sources
from benchmarks.result import Result

RUNGS, QUICK_RUNGS = 12, 2
RUNG_S = 3.0
STILL_S = 0.3
WAYS = ("plain", "fork_server")
_MONITOR = """
import glob, time
while True:
    for file in glob.glob("/proc/[0-9]*/task/[0-9]*/stat"):
        try:
            open(file).read()
        except OSError:
            pass
    time.sleep(0.08)
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.standstill")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNGS} rungs each; not written")
    quick = parser.parse_args().quick
    catalogue = read_catalogue(None)
    problem = parse_problem(
        read_sources("tiny-cpu", None), catalogue=catalogue, allow_quality_loss=False, allow=(), overrides=Overrides()
    )
    python, rungs = Path(catalogue.python), QUICK_RUNGS if quick else RUNGS
    rows: list[dict[str, str | int | float]] = []
    with tempfile.TemporaryDirectory(prefix="vtune-standstill-") as folder, monitored():
        server = ForkServer(vllm_python=python, log=Path(folder) / "fork-server.log", env=dict(os.environ))
        with server:
            for way in WAYS:
                launcher = VllmLauncher(
                    vllm_python=python,
                    logs=Path(folder) / way,
                    platform="cpu",
                    fork_server=server if way == "fork_server" else None,
                    known_flags=frozenset(catalogue.flags) | catalogue.server_flags,
                )
                for number, longest_s in enumerate(longest_gaps(launcher, problem, rungs)):
                    rows.append({"way": way, "rung": number, "longest_s": longest_s, "kernel": platform.release()})
                    sys.stdout.write(f"{rows[-1]}\n")
                    sys.stdout.flush()
    figures: dict[str, float] = {"rungs": rungs}
    for way in WAYS:
        longest = [float(row["longest_s"]) for row in rows if row["way"] == way]
        figures[f"stood_still_{way}"] = sum(one > STILL_S for one in longest)
        figures[f"longest_s_{way}"] = max(longest)
    result = Result(name="standstill", figures=figures)
    sys.stdout.write(result.table() + "\n")
    if not quick:
        result.write(pa.Table.from_pylist(rows))


def longest_gaps(launcher: VllmLauncher, problem: Problem, rungs: int) -> Iterator[float]:
    """Per rung the longest time, in seconds, without a token of any request, from one engine."""
    default = problem.space.default()
    config = replace(default, model=resolve_model(default.model))
    rung = replace(problem.workload.reference, duration_s=RUNG_S)
    with launcher(config, ("cpu",), name="engine", cancelled=lambda: False) as started:
        if not isinstance(started, Endpoint):
            raise RuntimeError(f"no engine: {started.cause}: {started.evidence}")
        for seed in range(rungs + 1):
            records: list[RequestRecord] = []
            for block in HttpLoader()(started, problem.workload, rung, seed=seed):
                records += block.records
            if seed:  # the first one warms the engine up
                times_s, _, _ = token_times([record for record in records if record.first_token_s is not None])
                yield float(np.diff(np.sort(times_s)).max())


@contextmanager
def monitored() -> Iterator[None]:
    monitor = subprocess.Popen([sys.executable, "-c", _MONITOR])
    try:
        yield
    finally:
        monitor.kill()
        monitor.wait()


if __name__ == "__main__":
    main()
