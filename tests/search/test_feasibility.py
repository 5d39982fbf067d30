from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from search_problems import SERVING, TOY

from autotune.search.design import random_points
from autotune.search.encoding import Encoding
from autotune.search.feasibility import Feasibility
from autotune.spec.config import FlagValue
from autotune.spec.space import Bundles, Choice, Dimension, IntRange, Point, SearchSpace

MIXED = SearchSpace(
    name="mixed",
    model="m",
    dimensions=(
        Dimension(name="backend", domain=Choice(values=("a", "b", None))),
        Dimension(name="seqs", domain=IntRange(low=1, high=256, log=True)),
        Dimension(name="size", domain=Choice(values=(16, 32, 64))),
        Dimension(
            name="quantized", domain=Bundles(options={"no": {}, "awq": {"quantization": "awq"}}), target="bundle"
        ),
    ),
)


def draw(space: SearchSpace, count: int, seed: int = 0) -> list[Point]:
    source = random_points(space, seed=seed, stream=9)
    return [next(source) for _ in range(count)]


def learn(space: SearchSpace, points: list[Point], runs: list[bool]) -> Feasibility:
    pairs = list(zip(points, runs, strict=True))
    model = Feasibility.learn(
        Encoding(space), ran=[p for p, ok in pairs if ok], failed=[p for p, ok in pairs if not ok]
    )
    assert model is not None
    return model


def accuracy(space: SearchSpace, runs: dict[str, FlagValue] | None = None, *, seen: int = 24) -> float:
    """Share of fresh points judged rightly where every flag in `runs` has to have its value (else: seqs < 40)."""

    def ok(point: Point) -> bool:
        if runs is None:
            return int(str(point["seqs"])) < 40
        return all(point[name] == value for name, value in runs.items())

    points = draw(space, seen)
    model = learn(space, points, [ok(point) for point in points])
    fresh = draw(space, 300, seed=1)
    return sum(model.likely(point) == ok(point) for point in fresh) / len(fresh)


def test_nothing_is_said_before_there_are_two_of_each_kind() -> None:
    points = draw(TOY, 5)
    assert Feasibility.learn(Encoding(TOY), ran=points, failed=[]) is None
    assert Feasibility.learn(Encoding(TOY), ran=points[:4], failed=points[4:]) is None
    assert Feasibility.learn(Encoding(TOY), ran=points[:3], failed=points[3:]) is not None


def test_a_limit_on_one_flag_is_found_whatever_the_others_are() -> None:
    assert accuracy(MIXED) >= 0.9


def test_a_dead_choice_is_found_whatever_the_others_are() -> None:
    assert accuracy(MIXED, {"quantized": "no"}) >= 0.95


def test_of_unordered_values_only_the_one_that_ran_is_believed() -> None:
    assert accuracy(MIXED, {"backend": "a"}) >= 0.9


@given(st.integers(0, 200))
def test_points_that_ran_are_likely_and_points_that_failed_are_not(seed: int) -> None:
    points = draw(SERVING, 12, seed)
    chance = random.Random(seed)
    runs = [True, True, False, False] + [chance.random() < 0.6 for _ in points[4:]]
    model = learn(SERVING, points, runs)
    failed = [point for point, ok in zip(points, runs, strict=True) if not ok]
    assert all(model.likely(point) for point, ok in zip(points, runs, strict=True) if ok and point not in failed)
    assert not any(
        model.likely(point) for point in failed if point not in [p for p, ok in zip(points, runs, strict=True) if ok]
    )
