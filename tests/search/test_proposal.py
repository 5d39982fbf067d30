from __future__ import annotations

import numpy as np
import pytest
from search_problems import LATENCY, THROUGHPUT

from autotune.search.encoding import Floats
from autotune.search.feasibility import Feasibility
from autotune.search.known import Knowledge, Known
from autotune.search.proposal import FIRST_ALONE_EVERY, Proposer
from autotune.spec.objective import Slo
from autotune.spec.space import Dimension, FloatRange, Point, SearchSpace

SPACE = SearchSpace(
    name="s",
    model="m",
    dimensions=(
        Dimension(name="x", domain=FloatRange(low=0.0, high=1.0)),
        Dimension(name="y", domain=FloatRange(low=0.0, high=1.0)),
    ),
)
GRID: list[Point] = [{"x": round(0.1 * i, 1), "y": round(0.1 * j, 1)} for i in range(11) for j in range(11)]
VOLUME = FIRST_ALONE_EVERY + 1
FIRST = FIRST_ALONE_EVERY


def known(x: float, y: float) -> Known:
    """Throughput is best at x = 0.7, latency at x = 0; y costs both."""
    values = {
        THROUGHPUT.metric: 100 - 80 * (x - 0.7) ** 2 - 20 * y,
        LATENCY.metric: 10 + 50 * x + 10 * y,
    }
    return Known(point={"x": x, "y": y}, ran=True, values=values)


def proposer(*limits: Slo, count: int = 25) -> tuple[Proposer, Knowledge]:
    knowledge = Knowledge(SPACE, (THROUGHPUT, LATENCY), limits)
    rng = np.random.default_rng(1)
    for _ in range(count):
        knowledge.add(known(*rng.random(2).tolist()))
    return Proposer(knowledge), knowledge


def worth(
    one: Proposer, *, number: int = VOLUME, gpus: list[int] | None = None, pending: list[Point] | None = None
) -> Floats:
    found = one.worth(GRID, pending=pending or [], gpus=gpus or [1] * len(GRID), feasibility=None, number=number)
    assert found is not None
    return found


def best(values: Floats) -> Point:
    return GRID[int(values.argmax())]


def test_nothing_is_said_before_three_points_were_measured() -> None:
    one, _ = proposer(count=2)
    assert one.worth(GRID, pending=[], gpus=[1] * len(GRID), feasibility=None, number=1) is None


def test_every_fifth_time_it_goes_for_the_first_objective_alone() -> None:
    one, _ = proposer()
    point = best(worth(one, number=FIRST))
    assert point["x"] == pytest.approx(0.7, abs=0.11) and point["y"] == 0.0


def test_it_goes_where_the_front_is_expected_to_grow() -> None:
    one, _ = proposer()
    assert best(worth(one))["y"] == 0.0


def test_a_limit_keeps_it_where_the_limit_is_likely_kept() -> None:
    one, _ = proposer(Slo(metric=LATENCY.metric, limit=30.0))
    assert float(str(best(worth(one, number=FIRST))["x"])) <= 0.41


def test_where_no_limit_was_kept_yet_it_looks_for_one_that_is() -> None:
    one, _ = proposer(Slo(metric=LATENCY.metric, limit=11.0))
    point = best(worth(one))
    assert (point["x"], point["y"]) == (0.0, 0.0)


def test_twice_the_gpus_are_half_the_worth() -> None:
    one, _ = proposer()
    assert worth(one, gpus=[2] * len(GRID)) == pytest.approx(worth(one) / 2)


def test_two_that_run_at_once_do_not_go_to_one_place() -> None:
    one, _ = proposer()
    first = best(worth(one))
    assert best(worth(one, pending=[first])) != first


def test_what_is_unlikely_to_start_is_worth_nothing() -> None:
    one, knowledge = proposer()
    wall = [{"x": 0.9, "y": 0.1 * j} for j in range(5)]
    fits = Feasibility.learn(knowledge.encoding, ran=[{"x": 0.2, "y": 0.1 * j} for j in range(5)], failed=wall)
    found = one.worth(GRID, pending=[], gpus=[1] * len(GRID), feasibility=fits, number=VOLUME)
    assert found is not None
    assert all(value == 0.0 for value, point in zip(found, GRID, strict=True) if float(str(point["x"])) >= 0.8)
    assert found.max() > 0


def test_a_new_proposer_finds_what_one_that_has_proposed_before_finds() -> None:
    old, knowledge = proposer(count=10)
    worth(old)
    rng = np.random.default_rng(5)
    for _ in range(7):
        knowledge.add(known(*rng.random(2).tolist()))
        worth(old)
    assert worth(Proposer(knowledge)) == pytest.approx(worth(old))
