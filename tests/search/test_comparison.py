from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.comparison import Spread, compare, drift, spread, student_t

pytestmark = pytest.mark.timeout(10)

positive = st.floats(min_value=1e-3, max_value=1e6)
NOISE = Spread(cv=0.05, df=6)


@pytest.mark.parametrize(
    ("p", "df", "tabled"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 3, 3.1824),
        (0.975, 4, 2.7764),
        (0.975, 10, 2.2281),
        (0.9875, 6, 2.9687),
        (0.995, 30, 2.7500),
        (0.9, 5, 1.4759),
        (0.025, 10, -2.2281),
    ],
)
def test_quantiles_of_students_t_are_those_of_the_tables(p: float, df: int, tabled: float) -> None:
    assert student_t(p, df) == pytest.approx(tabled, rel=2e-4)


@given(st.floats(0.55, 0.999), st.integers(1, 60))
def test_the_more_is_known_the_narrower_is_t(p: float, df: int) -> None:
    assert student_t(p, df + 1) < student_t(p, df)


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.9, 0)])
def test_there_is_no_t_without_a_degree_of_freedom_or_a_probability(p: float, df: int) -> None:
    with pytest.raises(ValueError, match="no t quantile"):
        student_t(p, df)


@given(st.lists(positive, min_size=2, max_size=6), st.floats(1e-3, 1e3))
def test_the_spread_does_not_depend_on_the_unit(values: list[float], unit: float) -> None:
    one, other = spread([values]), spread([[unit * value for value in values]])
    assert one is not None
    assert other is not None
    assert one.cv == pytest.approx(other.cv, abs=1e-6)


def test_the_spread_is_pooled_over_configurations_and_not_between_them() -> None:
    found = spread([[100.0, 110.0], [1000.0, 1100.0], [7.0]])
    assert found is not None
    assert found.df == 2
    assert found.cv == pytest.approx(math.log(1.1) / math.sqrt(2))


@pytest.mark.parametrize("groups", [[], [[1.0]], [[1.0], [2.0]], [[0.0, 1.0]], [[math.inf, 1.0]]])
def test_no_spread_is_made_up(groups: list[list[float]]) -> None:
    assert spread(groups) is None


@given(st.floats(0.001, 1.0), st.integers(1, 50))
def test_the_interval_of_a_spread_holds_it(cv: float, df: int) -> None:
    low, high = Spread(cv=cv, df=df).interval()
    assert low < cv < high


def test_a_prior_fades_out_with_repeats() -> None:
    shrunk = [Spread(cv=0.01, df=df).beside(0.05, prior_df=4) for df in (1, 10, 1000)]
    assert shrunk == sorted(shrunk, reverse=True)
    assert shrunk[-1] == pytest.approx(0.01, rel=0.1)


@given(st.lists(positive, min_size=1, max_size=6), st.lists(positive, min_size=1, max_size=6), st.booleans())
def test_a_gain_lies_in_its_interval(new: list[float], old: list[float], maximize: bool) -> None:
    found = compare(new, old, maximize=maximize, noise=NOISE)
    assert found is not None
    assert found.low <= found.gain <= found.high


@given(st.lists(positive, min_size=1, max_size=6), st.lists(positive, min_size=1, max_size=6))
def test_turning_the_direction_turns_the_sign(new: list[float], old: list[float]) -> None:
    up = compare(new, old, maximize=True, noise=NOISE)
    down = compare(new, old, maximize=False, noise=NOISE)
    assert up is not None
    assert down is not None
    assert (up.low > 0) == (down.high < 0)
    assert (up.high < 0) == (down.low > 0)


def test_a_gain_of_a_value_that_is_zero_is_not_stated() -> None:
    assert compare([0.0, 1.0], [1.0], maximize=True, noise=NOISE) is None


def test_the_interval_holds_the_true_gain_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        new, old = (1.1 * np.exp(0.05 * rng.standard_normal(3)), np.exp(0.05 * rng.standard_normal(3)))
        noise = spread([new.tolist(), old.tolist()])
        assert noise is not None
        found = compare(new.tolist(), old.tolist(), maximize=True, noise=noise)
        assert found is not None
        held += found.low <= 0.1 <= found.high
    assert 0.92 <= held / 400 <= 0.98


def test_a_machine_that_slows_down_is_seen_to_drift() -> None:
    found = drift([0.0, 100.0, 200.0, 300.0], [1000.0, 951.0, 899.0, 850.0])
    assert found is not None
    assert found.real
    assert found.change == pytest.approx(-0.15, abs=0.01)
    assert found.over_s == 300.0


@pytest.mark.parametrize("values", [[1000.0, 990.0], [1000.0, 990.0, 0.0]])
def test_no_drift_is_made_up(values: list[float]) -> None:
    assert drift([float(n) for n in range(len(values))], values) is None


def test_noise_alone_is_no_drift() -> None:
    found = drift([0.0, 1.0, 2.0, 3.0], [1000.0, 1050.0, 960.0, 1010.0])
    assert found is not None
    assert not found.real
