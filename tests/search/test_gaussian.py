from __future__ import annotations

import numpy as np
import pytest

from autotune.search.encoding import Floats
from autotune.search.gaussian import Gaussian, fit

RNG = np.random.default_rng(3)
X = RNG.random((40, 3))
OWNERS = np.arange(3)
TRUTH = np.sin(3 * X[:, 0]) + 0.5 * X[:, 1]
"""The third column means nothing."""


def learned(y: Floats, extra: Floats | None = None) -> Gaussian:
    more = np.zeros(len(y)) if extra is None else extra
    return Gaussian.of(X, OWNERS, y, more, fit(X, OWNERS, y, more))


Y = (TRUTH - TRUTH.mean()) / TRUTH.std()


def test_it_predicts_what_it_has_not_seen_and_knows_how_well() -> None:
    fresh = RNG.random((200, 3))
    truth = (np.sin(3 * fresh[:, 0]) + 0.5 * fresh[:, 1] - TRUTH.mean()) / TRUTH.std()
    mean, deviation = learned(Y).predict(fresh)
    assert np.abs(mean - truth).mean() < 0.1
    assert (np.abs(mean - truth) < 3 * deviation + 0.02).mean() > 0.95


def test_far_from_everything_it_is_less_sure_than_at_a_measured_point() -> None:
    _, deviation = learned(Y).predict(np.concatenate([X[:1], X[:1] + 5.0]))
    assert deviation[1] > 5 * deviation[0]


def test_what_means_nothing_gets_the_longest_scale() -> None:
    weights = fit(X, OWNERS, Y, np.zeros(len(Y))).weights
    assert weights[2] < weights[0] and weights[2] < weights[1]


def test_noise_is_found_and_not_followed() -> None:
    noisy = Y + RNG.normal(0.0, 0.3, len(Y))
    assert fit(X, OWNERS, noisy, np.zeros(len(Y))).noise > 5 * fit(X, OWNERS, Y, np.zeros(len(Y))).noise
    mean, _ = learned(noisy).predict(X)
    assert np.abs(mean - Y).mean() < np.abs(noisy - Y).mean()


def test_a_value_said_to_be_unsure_pulls_less() -> None:
    wrong, unsure = Y.copy(), np.zeros(len(Y))
    wrong[0] += 3.0
    unsure[0] = 4.0
    believed, _ = learned(wrong).predict(X[:1])
    doubted, _ = learned(wrong, unsure).predict(X[:1])
    assert abs(doubted[0] - Y[0]) < abs(believed[0] - Y[0])


def test_without_dimensions_it_is_the_mean() -> None:
    nothing, owners = np.zeros((4, 0)), np.zeros(0, dtype=np.int64)
    y = np.array([1.0, -1.0, 1.0, -1.0])
    process = Gaussian.of(nothing, owners, y, np.zeros(4), fit(nothing, owners, y, np.zeros(4)))
    assert process.predict(nothing[:1])[0][0] == pytest.approx(0.0, abs=1e-6)
