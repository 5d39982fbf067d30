from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.dominance import dominates, front, hypervolume, noisy_front, surely_dominates

small = st.integers(0, 4).map(float)  # few values, so that ties are common
losses = st.tuples(small, small, small)
interval = st.tuples(small, small).map(lambda pair: (min(pair), max(pair)))
bounds = st.tuples(interval, interval)
share = st.floats(0, 1, width=16)


@given(losses, losses)
def test_two_configurations_never_dominate_each_other(a: tuple[float, ...], b: tuple[float, ...]) -> None:
    assert not (dominates(a, b) and dominates(b, a))


@given(losses)
def test_nothing_dominates_itself(a: tuple[float, ...]) -> None:
    assert not dominates(a, a)


@given(losses, losses, losses)
def test_dominance_is_transitive(a: tuple[float, ...], b: tuple[float, ...], c: tuple[float, ...]) -> None:
    assert not (dominates(a, b) and dominates(b, c)) or dominates(a, c)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((1.0, 1.0), (2.0, 2.0), True),
        ((1.0, 1.0), (1.0, 2.0), True),
        ((1.0, 1.0), (1.0, 1.0), False),
        ((1.0, 3.0), (2.0, 2.0), False),
        ((1.0, math.nan), (2.0, 2.0), False),
        ((1.0, 1.0), (2.0, math.nan), False),
    ],
)
def test_dominance_by_table(a: tuple[float, ...], b: tuple[float, ...], expected: bool) -> None:
    assert dominates(a, b) is expected


def test_vectors_of_different_lengths_are_a_bug() -> None:
    with pytest.raises(ValueError, match="longer"):
        dominates((1.0,), (1.0, 2.0))


@given(st.lists(losses, max_size=12))
def test_front_members_do_not_dominate_each_other(items: list[tuple[float, ...]]) -> None:
    kept = [items[index] for index in front(items)]
    assert not any(dominates(a, b) for a in kept for b in kept)


@given(st.lists(losses, max_size=12))
def test_whatever_is_not_on_the_front_is_dominated_by_something_on_it(items: list[tuple[float, ...]]) -> None:
    kept = set(front(items))
    assert all(any(dominates(items[k], item) for k in kept) for i, item in enumerate(items) if i not in kept)


def test_a_front_of_a_mapping_names_its_keys() -> None:
    assert front({7: (1.0, 2.0), 3: (2.0, 1.0), 9: (2.0, 2.0)}) == [7, 3]


@given(bounds, bounds, bounds)
def test_sure_dominance_is_transitive(
    a: tuple[tuple[float, float], ...], b: tuple[tuple[float, float], ...], c: tuple[tuple[float, float], ...]
) -> None:
    assert not (surely_dominates(a, b) and surely_dominates(b, c)) or surely_dominates(a, c)


@given(st.lists(st.tuples(losses, st.tuples(share, share, share)), max_size=8))
def test_noise_only_ever_adds_to_the_front(items: list[tuple[tuple[float, ...], tuple[float, ...]]]) -> None:
    exact = {index: values for index, (values, _) in enumerate(items)}
    noisy = {
        i: [(v - w, v + w) for v, w in zip(values, widths, strict=True)] for i, (values, widths) in enumerate(items)
    }
    assert set(front(exact)) <= set(noisy_front(noisy))


def test_overlapping_intervals_leave_both_on_the_front() -> None:
    assert noisy_front({"a": [(1.0, 2.1)], "b": [(2.0, 3.0)], "c": [(2.2, 3.0)]}) == ["a", "b"]


@pytest.mark.parametrize(
    ("items", "reference", "expected"),
    [
        ([], (1.0, 1.0), 0.0),
        ([(0.0,), (0.5,)], (1.0,), 1.0),
        ([(0.0, 0.0)], (2.0, 3.0), 6.0),
        ([(0.0, 1.0), (1.0, 0.0)], (2.0, 2.0), 3.0),
        ([(0.0, 1.0), (1.0, 0.0), (1.5, 1.5), (3.0, -9.0)], (2.0, 2.0), 3.0),
        ([(0.0, 0.0, 0.0)], (1.0, 2.0, 3.0), 6.0),
        ([(0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0)], (2.0, 2.0, 2.0), 4.0),
    ],
)
def test_hypervolume_by_table(items: list[tuple[float, ...]], reference: tuple[float, ...], expected: float) -> None:
    assert hypervolume(items, reference) == pytest.approx(expected)


@given(st.lists(st.tuples(share, share, share), min_size=1, max_size=6))
def test_hypervolume_is_that_of_the_front(items: list[tuple[float, ...]]) -> None:
    only = [items[index] for index in front(items)]
    assert hypervolume(items, (1.0, 1.0, 1.0)) == pytest.approx(hypervolume(only, (1.0, 1.0, 1.0)))


@given(st.lists(st.tuples(share, share), min_size=1, max_size=6), st.tuples(share, share))
def test_one_more_point_never_lowers_the_hypervolume(items: list[tuple[float, ...]], more: tuple[float, ...]) -> None:
    assert hypervolume([*items, more], (1.0, 1.0)) >= hypervolume(items, (1.0, 1.0)) - 1e-12


def test_hypervolume_agrees_with_counting_random_points() -> None:
    chance = random.Random(3)
    items = [(chance.random(), chance.random(), chance.random()) for _ in range(6)]
    darts = [(chance.random(), chance.random(), chance.random()) for _ in range(20_000)]
    hit = sum(any(all(x <= d for x, d in zip(item, dart, strict=True)) for item in items) for dart in darts)
    assert hypervolume(items, (1.0, 1.0, 1.0)) == pytest.approx(hit / len(darts), abs=0.015)


def test_four_objectives_have_no_hypervolume_here() -> None:
    with pytest.raises(ValueError, match="one to three"):
        hypervolume([], (1.0,) * 4)
