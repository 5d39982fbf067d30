"""How much two runs of one configuration differ: the default of tiny-cpu, started cold again and again.

`python -m benchmarks.baseline_noise [--quick]`. Real vLLM engines, one at a time, the shipped workload, another seed of
prompts for each run, as in a search. `benchmarks.aa` takes the noise of its simulated engines from here.

What is measured is the engine's own variation and not that of its neighbours: processor time that other programs took
while the load ran is counted, and a run counts as quiet where it was at most `QUIET_SHARE`. The first run warms files
and compile caches up and counts for nothing. The workload's rung is run twice per engine start; figures are those of
the second. They are standard deviations of logarithms (`cv_*`: of quiet runs; `cv_all_*`: of all but the first).
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from autotune.run.engines import EngineKit
from autotune.run.options import SearchOptions
from autotune.spec.verdict import Measured
from autotune.trial.climb import Outcome, Snapshot, climb
from benchmarks.one_trial import tiny_problem
from benchmarks.result import RESULTS, Result

RUNS, QUICK_RUNS = 20, 3
QUIET_SHARE = 0.10
"""Of the machine's cores, taken by other programs and by the kernel (its part in our own traffic is about 5 %)."""
LONGEST_S = 600.0
METRICS = ("output_tok_per_s_per_gpu", "ttft_p99_ms", "tpot_p99_ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNS} quiet runs instead of {RUNS}; not written")
    parser.add_argument(
        "--read", action="store_true", help="start nothing: figures from the runs kept beside the result"
    )
    parser.add_argument("--longest", type=float, default=LONGEST_S, metavar="S", help="stop after so many seconds")
    given = parser.parse_args()
    if given.read:
        rows = pq.read_table(RESULTS / "baseline_noise.parquet").to_pylist()
        rows = [row | {"quiet": row["run"] > 0 and row["others_share"] <= QUIET_SHARE} for row in rows]
    else:
        rows = measure(QUICK_RUNS if given.quick else RUNS, longest_s=given.longest)
    figures: dict[str, float] = {"quiet_runs": sum(bool(row["quiet"]) for row in rows), "all_runs": len(rows) - 1}
    for metric in METRICS:
        name = metric.removesuffix("_ms").removesuffix("_per_gpu")
        for prefix, chosen in (("cv", [row for row in rows if row["quiet"]]), ("cv_all", rows[1:])):
            values = [float(row[metric] or 0.0) for row in chosen]
            if len(values) > 2 and min(values) > 0:
                figures[f"{prefix}_{name}"] = statistics.stdev(map(math.log, values))
    result = Result(name="baseline_noise", figures=figures)
    print(result.table())
    if not given.quick:
        print(f"written: {result.write(pa.Table.from_pylist(rows))}")


def measure(quiet_runs: int, *, longest_s: float) -> list[dict[str, float | bool | None]]:
    problem, catalogue = tiny_problem()
    options = SearchOptions(vllm_python=Path(catalogue.python), platform=catalogue.platform)
    kit = EngineKit(options=options, known_flags=frozenset(catalogue.flags) | catalogue.server_flags)
    rows: list[dict[str, float | bool | None]] = []
    busy = problem.workload.reference
    workload = replace(problem.workload, rungs=(replace(busy, name="first"), busy))
    end = time.monotonic() + longest_s
    with tempfile.TemporaryDirectory(prefix="vtune-noise-") as logs:
        engines = kit.open(Path(logs))
        try:
            while sum(bool(row["quiet"]) for row in rows) < quiet_runs and time.monotonic() < end:
                began = time.time()
                outcome, others = followed(
                    climb(
                        engines.resolve(problem.space.default()),
                        workload,
                        name=f"{len(rows):04d}-1",
                        slos=problem.slos,
                        seed=len(rows),
                        devices=kit.devices(()),
                        launcher=engines.usual,
                        loader=engines.loader,
                        clock=engines.clock,
                        cancelled=lambda: False,
                    )
                )
                if not isinstance(outcome.verdict, Measured):
                    raise SystemExit(f"run {len(rows)}: {outcome.verdict}")
                measurement = outcome.verdict.measurement
                values = {metric: measurement.value(metric) for metric in METRICS}
                values |= {f"first_{metric}": outcome.measurements[0].value(metric) for metric in METRICS}
                quiet = bool(rows) and others <= QUIET_SHARE
                rows.append({"run": len(rows), "began": began, "quiet": quiet, "others_share": others, **values})
                print(rows[-1], flush=True)
        finally:
            engines.close()
    return rows


def followed(story: Generator[Snapshot, None, Outcome]) -> tuple[Outcome, float]:
    """The trial's outcome, and the share of the machine that other programs took between its load's first and last
    snapshot."""
    readings: list[tuple[float, float, float]] = []
    try:
        while True:
            if next(story).stage == "load":
                readings.append((time.monotonic(), _busy_s(), _own_s()))
    except StopIteration as end:
        outcome: Outcome = end.value
    if len(readings) < 2:
        return outcome, math.inf
    wall, busy, own = (last - first for first, last in zip(readings[0], readings[-1], strict=True))
    return outcome, max(0.0, busy - own) / (wall * (psutil.cpu_count() or 1))


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _own_s() -> float:
    """Of this process, its descendants, and engines, which are descendants of the fork server."""
    mine = psutil.Process(os.getpid())
    seconds = 0.0
    for process in psutil.process_iter():
        try:
            ours = process == mine or mine in process.parents() or "fork_server.py" in " ".join(process.cmdline())
            if ours:
                times = process.cpu_times()
                seconds += times.user + times.system
        except psutil.Error:
            continue
    return seconds


if __name__ == "__main__":
    main()
