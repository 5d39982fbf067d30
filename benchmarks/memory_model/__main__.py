from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import pyarrow as pa

import benchmarks.memory_model
from autotune.spec.capacity import Capacity, estimate, gpu_gib
from autotune.spec.model import ModelShape
from benchmarks.memory_model.starts import DEFAULTS, GPU, Start, logged, searched, shapes
from benchmarks.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """`after`: the start that was seen before; None when none was."""

    start: Start
    after: str | None
    kv_gib: float
    naive_kv_gib: float

    @property
    def error_gib(self) -> float:
        return self.kv_gib - (self.start.facts.kv_cache_gib or 0.0)

    @property
    def naive_error_gib(self) -> float:
        return self.naive_kv_gib - (self.start.facts.kv_cache_gib or 0.0)

    def row(self) -> dict[str, str | float | None]:
        return {
            "start": self.start.name,
            "source": self.start.source,
            "slice": self.start.slice,
            "flags": repr(dict(self.start.config.flags)),
            "after": self.after,
            "logged_kv_gib": self.start.facts.kv_cache_gib,
            "predicted_kv_gib": round(self.kv_gib, 3),
            "error_gib": round(self.error_gib, 3),
            "naive_error_gib": round(self.naive_error_gib, 3),
        }


def cold(starts: Sequence[Start], known: dict[str, ModelShape]) -> Iterator[Prediction]:
    for start in starts:
        found = _estimate(start, known)
        yield Prediction(start=start, after=None, kv_gib=found.kv_gib, naive_kv_gib=_naive(start, found))


def warm(starts: Sequence[Start], known: dict[str, ModelShape]) -> Iterator[Prediction]:
    """The model learns nothing from a start yet: as cold."""
    for seen, start in permutations(starts, 2):
        if seen.slice == start.slice and seen.config.key != start.config.key:
            found = _estimate(start, known)
            yield Prediction(start=start, after=seen.name, kv_gib=found.kv_gib, naive_kv_gib=_naive(start, found))


def _estimate(start: Start, known: dict[str, ModelShape]) -> Capacity:
    return estimate(start.config, known[start.model], gpu_gib=gpu_gib(GPU), defaults=DEFAULTS)


def _naive(start: Start, found: Capacity) -> float:
    utilization = start.config.flags.get("gpu-memory-utilization")
    return found.gpu_gib * (utilization if isinstance(utilization, float) else 0.92) - found.weights_gib


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory_model",
        description=benchmarks.memory_model.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="not written")
    given = parser.parse_args()
    known = shapes()
    figures: dict[str, float] = {}
    rows: list[Prediction] = []
    for mark, starts in (("", logged()), ("search_", searched())):
        predicted = {"cold": list(cold(starts, known)), "warm": list(warm(starts, known))}
        for kind, predictions in predicted.items():
            errors = [abs(one.error_gib) for one in predictions]
            figures[f"kv_gib_abs_err_{mark}{kind}_median"] = statistics.median(errors)
            figures[f"kv_gib_abs_err_{mark}{kind}_max"] = max(errors)
            figures[f"{mark}{kind}_predictions"] = len(errors)
            rows += predictions
        figures[f"naive_kv_gib_abs_err_{mark}median"] = statistics.median(
            abs(one.naive_error_gib) for one in predicted["cold"]
        )
    result = Result(name="memory_model", figures=figures)
    for one in rows:
        if one.after is None:
            print(
                f"{one.start.name:28}{one.start.facts.kv_cache_gib:9.2f}{one.error_gib:+8.2f}", one.start.config.flags
            )
    print(result.table())
    if not given.quick:
        print(f"written: {result.write(pa.Table.from_pylist([one.row() for one in rows]))}")


if __name__ == "__main__":
    main()
