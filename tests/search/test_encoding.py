from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_problems import SERVING

from autotune.search.design import random_points
from autotune.search.encoding import Encoding, squared_distances
from autotune.spec.space import Bundles, Choice, Dimension, IntRange, Point, SearchSpace

MIXED = SearchSpace(
    name="mixed",
    model="m",
    dimensions=(
        Dimension(name="backend", domain=Choice(values=("a", "b", None))),
        Dimension(name="seqs", domain=IntRange(low=1, high=256, log=True)),
        Dimension(name="wide", domain=IntRange(low=16, high=1024)),
        Dimension(name="narrow", domain=IntRange(low=10, high=30)),
        Dimension(name="size", domain=Choice(values=(16, 32, 64))),
        Dimension(
            name="quantized", domain=Bundles(options={"no": {}, "awq": {"quantization": "awq"}}), target="bundle"
        ),
    ),
)
HERE: Point = {"backend": "a", "seqs": 16, "wide": 128, "narrow": 20, "size": 16, "quantized": "no"}


def apart(**changes: object) -> float:
    return Encoding(MIXED).distance(HERE, {**HERE, **changes})  # type: ignore[dict-item]


def test_ordered_flags_count_by_their_scale_and_others_by_being_different() -> None:
    assert apart() == 0.0
    assert apart(seqs=256) == pytest.approx(0.5)
    assert apart(size=32) == pytest.approx(0.5)
    assert apart(narrow=25) == pytest.approx(0.25)
    assert apart(backend=None) == apart(backend="b") == apart(quantized="awq") == pytest.approx(1.0)


def test_twice_as_much_is_one_step_wherever_a_wide_range_begins() -> None:
    assert apart(wide=256) == pytest.approx(apart(wide=64))


def test_a_dimension_that_takes_no_part_is_at_least_one_away_from_any_of_its_values() -> None:
    without = {name: value for name, value in HERE.items() if name != "wide"}
    assert Encoding(MIXED).distance(HERE, without) >= 1.0
    assert Encoding(MIXED).distance(without, without) == 0.0


@given(st.integers(0, 500))
def test_all_distances_at_once_are_those_one_by_one(seed: int) -> None:
    source, encoding = random_points(SERVING, seed=seed, stream=1), Encoding(SERVING)
    points = [next(source) for _ in range(4)]
    found = squared_distances(encoding.vectors(points[:2]), encoding.vectors(points[2:]))
    expected = [[encoding.distance(a, b) ** 2 for b in points[2:]] for a in points[:2]]
    assert np.allclose(found, expected, atol=1e-9)
    assert encoding.vectors(points).shape[1] == len(encoding.owners)
