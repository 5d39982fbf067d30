from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_problems import DEFAULTS, SERVING, TINY, TOY

from autotune.search.design import design_size, initial_design, random_points
from autotune.search.points import effective_key, every_point, locate, size
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.space import Bundles, Choice, Condition, Dimension, FloatRange, IntRange, Point, SearchSpace

EVERYTHING = SearchSpace(
    name="everything",
    model="m",
    dimensions=(
        Dimension(name="a", domain=IntRange(low=3, high=10, step=4)),
        Dimension(name="b", domain=IntRange(low=1, high=1000, log=True)),
        Dimension(name="c", domain=FloatRange(low=0.1, high=0.9, step=0.2)),
        Dimension(name="d", domain=FloatRange(low=0.001, high=10.0, log=True)),
        Dimension(name="e", domain=Choice(values=(None, True, "x"))),
        Dimension(name="VAR", domain=Choice(values=("0", "1")), target="env"),
        Dimension(
            name="quantized",
            domain=Bundles(options={"none": {}, "awq": {"model": "m-awq", "quantization": "awq"}}),
            target="bundle",
            when=Condition(name="e", values=(True, "x")),
        ),
    ),
)


def first(space: SearchSpace, count: int, seed: int = 0) -> list[Point]:
    source: Iterator[Point] = random_points(space, seed=seed, stream=1)
    return [next(source) for _ in range(count)]


@given(st.integers(0, 1000))
def test_a_random_point_stays_within_its_domains_and_conditions(seed: int) -> None:
    (point,) = first(EVERYTHING, 1, seed)
    a, b, c, d = (point[name] for name in "abcd")
    assert a in (3, 7)
    assert isinstance(b, int)
    assert 1 <= b <= 1000
    assert isinstance(c, float)
    assert min(abs(c - step) for step in (0.1, 0.3, 0.5, 0.7, 0.9)) < 1e-9
    assert isinstance(d, float)
    assert 0.001 <= d <= 10.0
    assert ("quantized" in point) == (point["e"] is not None)


def test_random_points_reach_both_ends_of_every_range() -> None:
    points = first(EVERYTHING, 300)
    assert {point["a"] for point in points} == {3, 7}
    assert {round(float(str(point["c"])), 1) for point in points} == {0.1, 0.3, 0.5, 0.7, 0.9}
    assert min(int(str(point["b"])) for point in points) == 1
    assert max(int(str(point["b"])) for point in points) > 900


@given(st.integers(0, 500))
def test_locating_what_was_decoded_finds_the_same_engine(seed: int) -> None:
    (point,) = first(EVERYTHING, 1, seed)
    config = EVERYTHING.decode(point)
    found = locate(EVERYTHING, config, {})
    assert found is not None
    assert effective_key(EVERYTHING.decode(found), {}) == effective_key(config, {})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, {"enable-prefix-caching": True, "max-num-seqs": 128}),
        ({"max-num-seqs": 64}, {"enable-prefix-caching": True, "max-num-seqs": 64}),
        ({"max-num-seqs": 65}, None),
        ({"max-num-seqs": 256}, None),
        ({"dtype": "auto"}, {"enable-prefix-caching": True, "max-num-seqs": 128}),
        ({"dtype": "float16"}, None),
    ],
)
def test_a_configuration_is_a_point_only_if_that_point_means_the_same(
    flags: dict[str, FlagValue], expected: Point | None
) -> None:
    assert locate(TINY, EngineConfig(model="m", flags=flags), DEFAULTS) == expected


def test_another_model_is_no_point() -> None:
    assert locate(TINY, EngineConfig(model="other"), DEFAULTS) is None


def test_a_flag_at_its_default_makes_no_other_engine() -> None:
    given_one = EngineConfig(model="m", flags={"max-num-seqs": 128, "enable-prefix-caching": True, "seed": None})
    assert effective_key(given_one, DEFAULTS) == effective_key(EngineConfig(model="m"), DEFAULTS)
    other = EngineConfig(model="m", flags={"enable-prefix-caching": 1})
    assert effective_key(other, DEFAULTS) != effective_key(EngineConfig(model="m"), DEFAULTS)


def test_every_point_of_a_finite_space_is_listed_once() -> None:
    points = [tuple(sorted(point.items())) for point in every_point(TINY)]
    assert len(points) == len(set(points)) == size(TINY) == 8


def test_a_continuous_space_has_no_list_of_points() -> None:
    with pytest.raises(ValueError, match="continuous"):
        list(every_point(TOY))


def design(space: SearchSpace, seed: int, count: int) -> list[Point]:
    def broken(point: Point) -> bool:
        return space.broken_rule(space.decode(point), DEFAULTS) is not None

    return initial_design(
        space, seed=seed, size=count, refused=broken, key=lambda point: effective_key(space.decode(point), DEFAULTS)
    )


@given(st.integers(0, 300))
def test_a_design_keeps_the_rules_and_repeats_nothing(seed: int) -> None:
    points = design(SERVING, seed, 12)
    assert all(SERVING.broken_rule(SERVING.decode(point), DEFAULTS) is None for point in points)
    assert len({effective_key(SERVING.decode(point), DEFAULTS) for point in points}) == len(points) == 12


@given(st.integers(0, 300))
def test_a_design_covers_every_stratum_of_every_dimension(seed: int) -> None:
    points = design(TOY, seed, 8)
    for name in ("x", "y"):
        assert sorted(int(float(str(point[name])) * 8) for point in points) == list(range(8))


def test_a_design_of_a_space_smaller_than_itself_is_the_whole_space() -> None:
    assert len(design(TINY, 1, 16)) == 8


def test_a_design_takes_at_most_half_of_the_trials() -> None:
    assert [design_size(SERVING, trials) for trials in (None, 100, 10, 1)] == [8, 8, 5, 1]
