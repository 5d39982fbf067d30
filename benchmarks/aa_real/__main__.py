"""Searches with nothing to find, on real engines: how many call a candidate better?

`python -m benchmarks.aa_real [--quick] [--searches N]`. Each is a whole `vtune search` of this folder's space: the
default and eight candidates that differ in vLLM's `seed` alone, which matters to nothing that is measured; rungs of
5 s, screening and confirmation included, at most 10 minutes.

- `false_better`: searches that concluded "better", of `searches`; `false_better_share` their share.
- `trials_mean`, `wall_s_mean`: runs and seconds of a search; `between_run_cv`: the median over searches of what each
  found as the spread of the first objective.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.result import Result

SEARCHES = 10
LONGEST_S = 600.0
FOLDER = Path(__file__).parent


def search(seed: int, out: Path) -> dict[str, Any]:
    """One row."""
    words = ["search", "--space", str(FOLDER / "space.yaml"), "--seed", str(seed), "--out", str(out), "--json"]
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "autotune.cli.main", *words], capture_output=True, text=True, timeout=LONGEST_S + 60
    )
    wall_s = time.monotonic() - began
    if ended.returncode != 0:
        raise RuntimeError(f"a search ended with {ended.returncode}: {ended.stderr[-2000:]}")
    confirmation = json.loads(ended.stdout)["confirmation"]
    trials = pq.read_table(out / "trials.parquet", columns=["verdict"]).num_rows
    return {
        "seed": seed,
        "conclusion": confirmation["conclusion"] if confirmation else "nothing confirmed",
        "between_run_cv": (confirmation or {}).get("between_run_cv", {}).get("output_tok_per_s_per_gpu"),
        "trials": trials,
        "wall_s": wall_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aa_real", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one search; not written")
    parser.add_argument("--searches", type=int, default=SEARCHES)
    given = parser.parse_args()
    rows = []
    with TemporaryDirectory(prefix="aa-real-") as folder:
        for seed in range(1 if given.quick else given.searches):
            rows.append(search(seed, Path(folder) / str(seed)))
            sys.stdout.write(f"{rows[-1]}\n")
            sys.stdout.flush()
    better = sum(row["conclusion"] == "better" for row in rows)
    figures: dict[str, float] = {
        "searches": len(rows),
        "false_better": better,
        "false_better_share": better / len(rows),
        "trials_mean": statistics.fmean(row["trials"] for row in rows),
        "wall_s_mean": statistics.fmean(row["wall_s"] for row in rows),
    }
    spreads = [row["between_run_cv"] for row in rows if row["between_run_cv"] is not None]
    if spreads:
        figures["between_run_cv"] = statistics.median(spreads)
    result = Result(name="aa_real", figures=figures)
    sys.stdout.write(result.table() + "\n")
    if not given.quick:
        result.write(pa.Table.from_pylist(rows))


if __name__ == "__main__":
    main()
