"""The fit of the simulated engine finds constants that it was given, and its errors are those of what it predicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.load.step_time import StepTime
from benchmarks.simulation import FITTED, METRICS, Seen, errors, fitted, measured_h200, simulated

TRUE = StepTime(weights_ms=3.0, compute_us_per_token=30.0, launch_ms=0.0, host_ms=0.5, host_us_per_sequence=15.0)


def seen_under(step: StepTime) -> list[Seen]:
    return [replace(one, values=simulated(one, step)) for one in measured_h200()[:4]]


def test_the_h200_runs_are_read_with_every_metric() -> None:
    found = measured_h200()
    assert len(found) >= 8
    assert all(one.values.keys() == set(METRICS) and one.kv_tokens for one in found)


@pytest.mark.timeout(10)
def test_errors_are_none_under_the_constants_that_made_the_figures() -> None:
    rows: list[dict[str, str | float]] = []
    found = errors("x", TRUE, seen_under(TRUE), rows)
    assert [found[f"x_{name}_rel_err_median"] for name in ("throughput", "tpot", "ttft")] == [0.0, 0.0, 0.0]
    assert len(rows) == 4 * len(METRICS)


@pytest.mark.timeout(90)
def test_a_fit_comes_close_to_the_constants_behind_the_figures() -> None:
    start = replace(TRUE, **{name: 1.5 * getattr(TRUE, name) for name in FITTED})
    seen = seen_under(TRUE)[:1]
    before, after = (errors("x", step, seen, []) for step in (start, fitted(start, seen, most=60)))
    for name in ("throughput", "tpot"):
        assert after[f"x_{name}_rel_err_median"] < before[f"x_{name}_rel_err_median"] / 4
