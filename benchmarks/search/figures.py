"""What the runs amount to: medians over seeds, ratios of them over problems."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

Row = Mapping[str, object]
OURS, PLAIN = "vtune", "tpe_restart"


def figures(rows: Sequence[Row]) -> Iterator[tuple[str, float]]:
    """The issue's figures first, then each method's, then each problem's."""
    arrived = _arrived(rows)
    problems = sorted({problem for problem, _ in arrived})
    methods = sorted({method for _, method in arrived})
    others = [method for method in methods if not method.startswith(OURS)]
    if OURS in methods and PLAIN in methods:
        yield "gpu_s_to_5pct_vs_tpe_restart", statistics.median(arrived[p, OURS] / arrived[p, PLAIN] for p in problems)
    if OURS in methods and others:
        yield (
            "gpu_s_to_5pct_vs_best_other",
            statistics.median(arrived[p, OURS] / min(arrived[p, other] for other in others) for p in problems),
        )
    ours = [row for row in rows if row["method"] == OURS]
    if ours:
        yield "dead_share", statistics.median(_dead_share(row) for row in ours)
        yield "dead_share_mean", statistics.mean(_dead_share(row) for row in ours)
        yield "worse_than_default_runs", sum(bool(row["worse"]) for row in ours)
        pruned = sum(_number(row, "pruned") for row in ours)
        yield "pruned_trials", pruned
        if pruned:
            yield "false_prune_share", sum(_number(row, "false_prunes") for row in ours) / pruned
            yield "truly_best_prune_share", sum(_number(row, "truly_best_prunes") for row in ours) / pruned
        saved = sum(_number(row, "saved_gpu_s") for row in ours)
        yield "pruning_saved_share", saved / (saved + sum(_number(row, "busy_gpu_s") for row in ours))
    yield "problems", len(problems)
    yield "seeds", len({row["seed"] for row in rows})
    for method in methods:
        mine = [row for row in rows if row["method"] == method]
        yield f"{method}.arrived_share", sum(row["arrived_gpu_s"] is not None for row in mine) / len(mine)
        yield (
            f"{method}.budget_share_to_5pct",
            statistics.median(arrived[p, method] / _budget(rows, p) for p in problems if (p, method) in arrived),
        )
        yield f"{method}.dead_share", statistics.median(_dead_share(row) for row in mine)
        yield f"{method}.regret_median", statistics.median(_number(row, "regret") for row in mine)
        yield f"{method}.regret_mean", statistics.mean(_number(row, "regret") for row in mine)
        yield f"{method}.worse_than_default_runs", sum(bool(row["worse"]) for row in mine)
    for problem in problems:
        for method in methods:
            if (problem, method) in arrived:
                yield f"{problem}.{method}.gpu_s_to_5pct", arrived[problem, method]


def raw_table(rows: Sequence[Row]) -> pa.Table:
    names = [name for name in rows[0] if name != "key"]
    return pa.table({name: [row[name] for row in rows] for name in names})


def _arrived(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Median over the seeds; a run that never arrives counts the whole budget."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        name = "budget_gpu_s" if row["arrived_gpu_s"] is None else "arrived_gpu_s"
        found[str(row["problem"]), str(row["method"])].append(_number(row, name))
    return {which: statistics.median(values) for which, values in found.items()}


def _budget(rows: Sequence[Row], problem: str) -> float:
    return next(_number(row, "budget_gpu_s") for row in rows if row["problem"] == problem)


def _dead_share(row: Row) -> float:
    return _number(row, "dead_gpu_s") / max(_number(row, "busy_gpu_s"), 1e-9)


def _number(row: Row, name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float)
    return float(value)
