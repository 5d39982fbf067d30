from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from search_problems import SERVING, TINY, TOY

from autotune.search.design import random_points
from autotune.search.points import every_point
from autotune.search.pool import NEAR, RANDOM, pool
from autotune.spec.space import Point, SearchSpace


def some(space: SearchSpace, seed: int) -> Point:
    return next(random_points(space, seed=seed, stream=3))


def test_a_small_space_is_looked_at_whole() -> None:
    assert pool(TINY, [], seed=1, number=5) == list(every_point(TINY))


@given(st.integers(0, 50))
def test_neighbours_differ_in_two_dimensions_at_most_but_for_what_depends_on_those(seed: int) -> None:
    good = some(SERVING, seed)
    near = pool(SERVING, [good], seed=seed, number=9)[RANDOM:]
    assert len(near) == NEAR
    dependent = "long-prefill-token-threshold"
    for point in near:
        changed = {name for name in {*good, *point} - {dependent} if good.get(name) != point.get(name)}
        assert len(changed) <= 2


def test_it_is_the_same_again_and_another_for_another_number() -> None:
    good = some(TOY, 0)
    assert pool(TOY, [good], seed=1, number=5) == pool(TOY, [good], seed=1, number=5)
    assert pool(TOY, [good], seed=1, number=5) != pool(TOY, [good], seed=1, number=6)


def test_some_neighbours_along_a_range_are_near_and_all_are_inside() -> None:
    near = pool(TOY, [{"x": 0.62, "y": 0.5}], seed=1, number=5)[RANDOM:]
    xs = [float(str(point["x"])) for point in near]
    assert all(0.0 <= x <= 1.0 for x in xs)
    assert sum(0 < abs(x - 0.62) < 0.05 for x in xs) > NEAR / 8
