"""What engines that outlive their trials save: the same candidates measured in three ways on this machine's CPU.

`python -m benchmarks.reuse [--quick]`. Real vLLM engines, one at a time, tiny-cpu's workload, the same candidates in
the same order with the same prompts:

- `reuse`: engines kept between trials where live settings do, new ones forked (`vtune search`);
- `forked`: a forked engine for every trial (`--no-reuse`);
- `spawned`: `python -m vllm.entrypoints.openai.api_server` for every trial, what tools without either do.

A way's time is that of all its trials from first to last, the fork server's import of vLLM included. Its overhead is
what of that isn't load: start, warm-up, stop and between trials. Figures: `cpu_trials_ratio` (trials in the same time
against `spawned`), `cpu_overhead_ratio` (overhead per trial against `spawned`), `cpu_overhead_ratio_reuse_only`
(against `forked`), `<way>_overhead_s_per_trial`, `engine_starts_reuse`; `throughput_rel_diff_median`: of each
candidate's output tok/s, reused against spawned. 8 candidates, 2 launches x 4 live settings; --quick: 1 x 3, not
written.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from itertools import product
from pathlib import Path

import pyarrow as pa

from autotune.run.engines import EngineKit
from autotune.run.options import SearchOptions
from autotune.spec.catalogue import Catalogue
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.live import LiveSplit
from autotune.spec.problem import Problem
from autotune.spec.verdict import Measured
from benchmarks.one_trial import measured, tiny_problem
from benchmarks.result import Result

LAUNCHES: tuple[dict[str, FlagValue], ...] = (
    {"block-size": 32},
    {"block-size": 128, "async-scheduling": True},
)
LIVE: tuple[dict[str, FlagValue], ...] = (
    {"max-num-seqs": 128, "max-num-batched-tokens": 4096},
    {"max-num-seqs": 32, "max-num-batched-tokens": 512},
    {"max-num-seqs": 16, "max-num-batched-tokens": 2048, "enable-prefix-caching": False},
    {"max-num-seqs": 64, "max-num-batched-tokens": 128},
)
METRIC = "output_tok_per_s_per_gpu"
Row = dict[str, float | int | str | bool | None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one launch, three candidates; not written")
    quick = parser.parse_args().quick
    problem, catalogue = tiny_problem()
    pairs = product(LAUNCHES[:1] if quick else LAUNCHES, LIVE[:3] if quick else LIVE)
    default = problem.space.default()
    configs = [EngineConfig(model=default.model, flags={**default.flags, **launch, **live}) for launch, live in pairs]
    rows: list[Row] = []
    total_s: dict[str, float] = {}
    for way in ("reuse", "forked", "spawned"):
        began = time.monotonic()
        rows += one_way(way, configs, problem, catalogue)
        total_s[way] = time.monotonic() - began
    result = Result(name="reuse", figures=figures(rows, total_s, trials=len(configs)))
    print(result.table())
    if not quick:
        print(f"written: {result.write(pa.Table.from_pylist(rows))}")


def one_way(way: str, configs: list[EngineConfig], problem: Problem, catalogue: Catalogue) -> list[Row]:
    options = SearchOptions(
        vllm_python=Path(catalogue.python), platform=catalogue.platform, fork=way != "spawned", reuse=way == "reuse"
    )
    kit = EngineKit(
        options=options,
        known_flags=frozenset(catalogue.flags) | catalogue.server_flags,
        split=LiveSplit.of(problem.space, catalogue.defaults()) if way == "reuse" else None,
    )
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="vtune-reuse-") as logs:
        engines = kit.open(Path(logs))
        try:
            for number, config in enumerate(configs):
                began = time.monotonic()
                outcome = measured(
                    config,
                    problem,
                    engines=engines,
                    launcher=engines.launcher("shared"),
                    name=f"{number:04d}-1",
                    seed=number,
                )
                if not isinstance(outcome.verdict, Measured):
                    raise SystemExit(f"{way}, candidate {number}: {outcome.verdict}")
                row: Row = {"way": way, "candidate": number, "reused": outcome.reused}
                row |= {"start_s": outcome.books.start_s, "load_s": outcome.books.load_s}
                row |= {"took_s": time.monotonic() - began, METRIC: outcome.verdict.measurement.value(METRIC)}
                rows.append(row)
                print(row, flush=True)
        finally:
            engines.close()
    return rows


def figures(rows: list[Row], total_s: dict[str, float], *, trials: int) -> dict[str, float]:
    def of(way: str, key: str) -> list[float]:
        return [float(row[key] or 0.0) for row in rows if row["way"] == way]

    overhead = {way: (seconds - sum(of(way, "load_s"))) / trials for way, seconds in total_s.items()}
    differences = [
        reused / spawned - 1.0 for reused, spawned in zip(of("reuse", METRIC), of("spawned", METRIC), strict=True)
    ]
    return {
        "cpu_trials_ratio": total_s["spawned"] / total_s["reuse"],
        "cpu_overhead_ratio": overhead["reuse"] / overhead["spawned"],
        "cpu_overhead_ratio_reuse_only": overhead["reuse"] / overhead["forked"],
        **{f"{way}_overhead_s_per_trial": seconds for way, seconds in overhead.items()},
        "engine_starts_reuse": sum(not row["reused"] for row in rows if row["way"] == "reuse"),
        "throughput_rel_diff_median": statistics.median(differences),
        "trials": trials,
    }


if __name__ == "__main__":
    main()
