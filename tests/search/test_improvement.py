from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.search.dominance import dominates, hypervolume
from autotune.search.encoding import Floats
from autotune.search.improvement import Predicted, expected_volume, thinned

DRAWS = 4000


def sampled(predicted: list[Predicted], seed: int) -> Floats:
    """(draws, objectives) of the first point."""
    rng = np.random.default_rng(seed)
    columns = []
    for one in predicted:
        normal = rng.normal(one.mean[0], one.deviation[0], DRAWS)
        columns.append(one.sign * np.exp(normal) if one.log else normal)
    return np.stack(columns, axis=1)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), objectives=st.integers(1, 3), log=st.booleans())
@pytest.mark.timeout(20)
def test_the_closed_form_is_what_sampling_gives(seed: int, objectives: int, log: bool) -> None:
    rng = np.random.default_rng(seed)
    signs = [1 if index % 2 else -1 for index in range(objectives)]
    front = [tuple(s * v for s, v in zip(signs, rng.uniform(1.0, 2.0, objectives), strict=True)) for _ in range(4)]
    reference = np.array([2.2 if sign > 0 else -0.8 for sign in signs])
    predicted = [
        Predicted(
            mean=np.array([rng.uniform(0.0, 0.6) if log else sign * rng.uniform(1.0, 2.0)]),
            deviation=np.array([0.2]),
            log=log,
            sign=sign,
        )
        for sign in signs
    ]
    base = hypervolume(front, tuple(reference))
    gains = [hypervolume([*front, tuple(row)], tuple(reference)) - base for row in sampled(predicted, seed)[:DRAWS]]
    error = np.std(gains) / np.sqrt(len(gains))
    assert expected_volume(predicted, front, reference)[0] == pytest.approx(np.mean(gains), abs=5 * error + 1e-4)


def test_a_point_surely_dominated_gains_nothing_and_one_beyond_the_front_its_volume() -> None:
    sure = np.array([1e-9, 1e-9])
    predicted = [
        Predicted(mean=np.array([3.0, 0.5]), deviation=sure),
        Predicted(mean=np.array([3.0, 0.5]), deviation=sure),
    ]
    gain = expected_volume(predicted, [(1.0, 1.0)], np.array([2.0, 2.0]))
    assert gain == pytest.approx([0.0, 1.5**2 - 1.0], abs=1e-6)


def test_with_no_front_yet_all_up_to_the_reference_is_gain() -> None:
    predicted = [Predicted(mean=np.array([1.0]), deviation=np.array([1e-9]))] * 2
    assert expected_volume(predicted, [], np.array([3.0, 2.0])) == pytest.approx([2.0])


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60))
def test_what_is_left_of_a_long_front_is_part_of_it_and_has_its_ends(items: list[tuple[float, ...]]) -> None:
    kept = thinned(items)
    assert set(kept) <= set(items) and len(kept) <= 26
    assert not any(dominates(a, b) for a in items for b in kept)
    for objective in range(3):
        assert min(item[objective] for item in kept) == min(item[objective] for item in items)
