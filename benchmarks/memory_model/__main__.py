from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import pyarrow as pa

import benchmarks.memory_model
from autotune.spec.capacity_learned import Prediction, SeenStart, predict
from autotune.spec.model import ModelShape
from benchmarks.memory_model.starts import Start, logged, public, searched, shapes
from benchmarks.result import Result

Shapes = Mapping[str, ModelShape]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """`after`: the start that was seen before; None when none was."""

    start: Start
    after: str | None
    prediction: Prediction

    @property
    def logged_gib(self) -> float:
        assert self.start.facts.kv_cache_gib is not None
        return self.start.facts.kv_cache_gib

    @property
    def error_gib(self) -> float:
        return self.prediction.expected.kv_gib - self.logged_gib

    @property
    def naive_error_gib(self) -> float:
        utilization = self.start.config.flags.get("gpu-memory-utilization")
        share = utilization if isinstance(utilization, float) else 0.92
        found = self.prediction.expected
        return found.gpu_gib * share - found.weights_gib - self.logged_gib

    @property
    def inside(self) -> bool:
        return self.prediction.pessimistic.kv_gib <= self.logged_gib <= self.prediction.optimistic.kv_gib

    def row(self) -> dict[str, str | float | None]:
        return {
            "start": self.start.name,
            "source": self.start.source,
            "slice": self.start.slice,
            "flags": repr(dict(self.start.config.flags)),
            "after": self.after,
            "logged_kv_gib": self.logged_gib,
            "predicted_kv_gib": round(self.prediction.expected.kv_gib, 3),
            "pessimistic_kv_gib": round(self.prediction.pessimistic.kv_gib, 3),
            "optimistic_kv_gib": round(self.prediction.optimistic.kv_gib, 3),
            "error_gib": round(self.error_gib, 3),
            "naive_error_gib": round(self.naive_error_gib, 3),
        }


def cold(starts: Sequence[Start], known: Shapes) -> Iterator[Forecast]:
    for start in starts:
        yield _forecast(start, known, seen=(), after=None)


def warm(starts: Sequence[Start], known: Shapes) -> Iterator[Forecast]:
    for seen, start in permutations(starts, 2):
        if seen.slice == start.slice and seen.config.key != start.config.key:
            yield _forecast(start, known, seen=[SeenStart(config=seen.config, facts=seen.facts)], after=seen.name)


def held_out_errors_gib(starts: Sequence[Start], known: Shapes) -> Iterator[float]:
    """Shifted by what the other slices' starts were missed by: what is fitted as a sum is fitted to those alone."""
    errors = {start.name: next(iter(cold([start], known))).error_gib for start in starts}
    for start in starts:
        others = [errors[other.name] for other in starts if other.slice != start.slice]
        if others:
            yield abs(errors[start.name] - statistics.median(others))


def _forecast(start: Start, known: Shapes, *, seen: Sequence[SeenStart], after: str | None) -> Forecast:
    found = predict(start.config, known[start.model], gpu_gib=start.gpu_gib, defaults=start.defaults, seen=seen)
    return Forecast(start=start, after=after, prediction=found)


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
    rows: list[Forecast] = []
    for mark, starts in (("", logged()), ("search_", searched()), ("public_", public())):
        predicted = {"cold": list(cold(starts, known)), "warm": list(warm(starts, known))}
        for kind, predictions in predicted.items():
            if not predictions:
                continue
            errors = [abs(one.error_gib) for one in predictions]
            figures[f"kv_gib_abs_err_{mark}{kind}_median"] = statistics.median(errors)
            figures[f"kv_gib_abs_err_{mark}{kind}_max"] = max(errors)
            figures[f"{mark}{kind}_inside_interval_share"] = sum(one.inside for one in predictions) / len(predictions)
            figures[f"{mark}{kind}_predictions"] = len(errors)
            rows += predictions
        figures[f"naive_kv_gib_abs_err_{mark}median"] = statistics.median(
            abs(one.naive_error_gib) for one in predicted["cold"]
        )
    held_out = list(held_out_errors_gib(logged(), known))
    figures["kv_gib_abs_err_held_out_median"] = statistics.median(held_out)
    figures["kv_gib_abs_err_held_out_max"] = max(held_out)
    result = Result(name="memory_model", figures=figures)
    for one in rows:
        if one.after is None:
            print(
                f"{one.start.name:34}{one.start.facts.kv_cache_gib:9.2f}{one.error_gib:+8.2f}", one.start.config.flags
            )
    print(result.table())
    if not given.quick:
        print(f"written: {result.write(pa.Table.from_pylist([one.row() for one in rows]))}")


if __name__ == "__main__":
    main()
