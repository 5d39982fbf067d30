"""How many GPU-seconds a search needs, and how many it wastes: vtune beside what others do.

Replayed, seeded, resumable.

    python -m benchmarks.search enumerate      the problems' tables, once (they are in the repository)
    python -m benchmarks.search                all methods, problems and seeds; goes on where it was stopped
    python -m benchmarks.search --quick        few seeds, the main methods

README.md beside this file says what is measured and how it is judged.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes on two cores
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from benchmarks.result import Result
from benchmarks.search import table, toy
from benchmarks.search.figures import figures, raw_table
from benchmarks.search.judge import Scale, judge
from benchmarks.search.peers import PEERS, search
from benchmarks.search.problems import CASES, Case
from benchmarks.search.tune import Parts, vtune

SEEDS, ABLATION_SEEDS, QUICK_SEEDS = 30, 10, 2
FIRST_SEED = 100
"""Seeds 0 to 4 were looked at while vtune's priors were chosen; these weren't."""
VTUNE = {"vtune": Parts()}
ABLATIONS = {
    "vtune-tpe": Parts(sampler="tpe"),
    "vtune-nsga2": Parts(sampler="nsga2"),
    "vtune-random": Parts(sampler="random"),
    "vtune-no-pruning": Parts(pruning=False),
    "vtune-no-memory-model": Parts(memory=False),
    "vtune-no-feasibility": Parts(memory=False, feasibility=False),
}
QUICK_METHODS = ("vtune", "tpe_restart", "random", "staged")
PROGRESS = Path(__file__).parent / "progress.jsonl"
"""A line per finished run; not in the repository."""
_CODE = ("autotune/search", "autotune/run", "benchmarks/search")


def code_digest() -> str:
    """Of all that decides what vtune does here: runs of other code are not mixed in."""
    root = Path(__file__).parents[2]
    files = sorted(file for folder in _CODE for file in (root / folder).glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def one_run(case: Case, method: str, seed: int) -> dict[str, object]:
    rows = table.read(case)
    scale = Scale.of(case, rows)
    budget = table.budget_gpu_s(rows)
    begin_s = time.perf_counter()
    parts = (VTUNE | ABLATIONS).get(method)
    run = (
        search(method, case, rows, seed=seed, budget_gpu_s=budget)
        if parts is None
        else vtune(case, rows, seed=seed, budget_gpu_s=budget, parts=parts)
    )
    took_s = time.perf_counter() - begin_s
    judged = judge(case, rows, scale, run)
    return {
        "problem": case.name,
        "method": method,
        "seed": seed,
        "budget_gpu_s": budget,
        **asdict(judged),
        "computed_s": took_s,
    }


def wanted(arguments: argparse.Namespace) -> Iterator[tuple[Case, str, int]]:
    """Seed by seed, so that what was finished when it is stopped is balanced; slow methods before quick ones."""
    methods = [*VTUNE, *PEERS, *([] if arguments.quick else ABLATIONS)]
    if arguments.quick:
        methods = list(QUICK_METHODS)
    if arguments.methods:
        methods = [method for method in methods if method in arguments.methods.split(",")]
    seeds = arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS)
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for method in methods:
            if method in ABLATIONS and seed >= FIRST_SEED + ABLATION_SEEDS:
                continue
            for case in CASES:
                if not arguments.problems or case.name in arguments.problems.split(","):
                    yield case, method, seed


def key(case: Case, method: str, seed: int, code: str) -> str:
    return f"{case.digest}/{method}/{seed}/{code}"


def finished(code: str) -> dict[str, dict[str, object]]:
    if not PROGRESS.exists():
        return {}
    lines = [json.loads(line) for line in PROGRESS.read_text().splitlines() if line.endswith("}")]
    return {line["key"]: line for line in lines if line["key"].endswith(code)}


def run_all(arguments: argparse.Namespace) -> list[dict[str, object]]:
    code = code_digest()
    done = finished(code)
    tasks = list(wanted(arguments))
    left = [task for task in tasks if key(*task, code) not in done]
    print(f"{len(tasks)} runs, {len(tasks) - len(left)} of them done before", flush=True)
    begin_s = time.monotonic()
    with ProcessPoolExecutor(arguments.processes) as pool, PROGRESS.open("a") as progress:
        futures = {pool.submit(one_run, *task): task for task in left}
        for count, future in enumerate(as_completed(futures), start=1):
            name = key(*futures[future], code)
            if (error := future.exception()) is not None:
                pool.shutdown(wait=False, cancel_futures=True)
                raise RuntimeError(f"{name} failed") from error
            done[name] = {"key": name, **future.result()}
            progress.write(json.dumps(done[name]) + "\n")
            progress.flush()
            if count % 100 == 0:
                print(f"{count} of {len(left)} after {time.monotonic() - begin_s:.0f} s", flush=True)
    return [done[key(*task, code)] for task in tasks]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("run", "enumerate"), default="run")
    parser.add_argument("--quick", action="store_true", help="few seeds, the main methods; another result file")
    parser.add_argument("--seeds", type=int, help="in place of 30 (ablations: 10 at most)")
    parser.add_argument("--methods", help="only these, separated by commas")
    parser.add_argument("--problems", help="only these, separated by commas")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.what == "enumerate":
        for case in CASES:
            print(table.enumerate_case(case, processes=arguments.processes), flush=True)
        return
    rows = run_all(arguments)
    found = dict(figures(rows))
    if not (arguments.methods or arguments.problems):
        found |= toy.figures(QUICK_SEEDS if arguments.quick else SEEDS)
        told = 1000 if arguments.quick else toy.TOLD
        p95_ms, failed = toy.suggest_p95_ms(told)
        found |= {"suggest_p95_ms_1k" if arguments.quick else "suggest_p95_ms_10k": p95_ms, "suggest_failed": failed}
    result = Result(name="search_quick" if arguments.quick else "search", figures=found)
    print(result.table())
    if arguments.methods or arguments.problems:
        print("a part only: no result is written")
        return
    print(result.write(raw_table(rows)))


if __name__ == "__main__":
    main()
