"""A Gaussian process: what a function of a few dozen noisy observations is elsewhere, and how sure that is.

Matern 5/2 with one length scale per dimension. The scales, the signal and the noise are what the observations and weak
priors make most probable together; length scales are expected to be long and to grow with the number of dimensions
(Hvarfner et al. 2024): most flags of a space do little, and a model that must first learn so tries their every value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize

from autotune.search.encoding import Floats, squared_distances

_LENGTH, _LENGTH_SPREAD = 2.0, 1.0
_NOISE, _NOISE_SPREAD = 0.04, 1.5
"""Of the standardised observations' variance: a run's luck is a few percent, what flags do is tens."""
_SIGNAL_SPREAD = 0.5
_FIT_STEPS = 40
_BOUNDS = ((-9.0, 7.0), (-3.0, 3.0), (-12.0, 1.0))
_JITTER = 1e-8
_ROOT5 = math.sqrt(5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """`weights`: 1 / length scale squared, per dimension. `noise` is relative to nothing: a variance, as `signal`."""

    weights: Floats
    signal: float
    noise: float


def fit(x: Floats, owners: NDArray[np.int64], y: Floats, extra: Floats) -> Scales:
    """The most probable scales. `x`: (n, columns), `owners`: each column's dimension, `y` and `extra`: (n,), the
    standardised values and the variance by which each is less sure than the others."""
    dimensions = int(owners.max()) + 1 if len(owners) else 0
    squared = np.zeros((dimensions, len(x), len(x)))
    for column, owner in enumerate(owners):
        squared[owner] += (x[:, column, None] - x[None, :, column]) ** 2
    centre = np.concatenate(
        [
            np.full(dimensions, -2.0 * math.log(_LENGTH * math.sqrt(max(1, dimensions)))),
            [0.0, math.log(_NOISE)],
        ]
    )
    spread = np.concatenate([np.full(dimensions, 2.0 * _LENGTH_SPREAD), [_SIGNAL_SPREAD, _NOISE_SPREAD]])
    flat = squared.reshape(dimensions, len(x) ** 2)
    identity = np.eye(len(x))

    def cost(theta: Floats) -> tuple[float, Floats]:
        weights, signal, noise = np.exp(theta[:-2]), math.exp(theta[-2]), math.exp(theta[-1])
        distance2 = (weights @ flat).reshape(len(x), len(x))
        root = _ROOT5 * np.sqrt(distance2)
        decay = np.exp(-root)
        kernel = signal * (1.0 + root + root**2 / 3.0) * decay
        full = kernel + np.diag(noise + extra + _JITTER)
        try:
            factor = cho_factor(full, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(theta)
        alpha = cho_solve(factor, y, check_finite=False)
        pull = cho_solve(factor, identity, check_finite=False) - np.outer(alpha, alpha)
        slope = pull * (-signal * 5.0 / 6.0) * (1.0 + root) * decay
        gradient = np.empty_like(theta)
        gradient[:-2] = 0.5 * (flat @ slope.ravel()) * weights
        gradient[-2] = 0.5 * float((pull * kernel).sum())
        gradient[-1] = 0.5 * noise * float(np.trace(pull))
        off = (theta - centre) / spread
        value = 0.5 * float(y @ alpha) + float(np.log(np.diag(factor[0])).sum()) + 0.5 * float(off @ off)
        return value, gradient + off / spread

    limits = [_BOUNDS[0]] * dimensions + [_BOUNDS[1], _BOUNDS[2]]
    found = minimize(cost, centre, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": _FIT_STEPS})
    theta = found.x if np.isfinite(found.fun) else centre
    return Scales(weights=np.exp(theta[:-2]), signal=math.exp(theta[-2]), noise=math.exp(theta[-1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """The process after its observations."""

    scales: Scales
    stretched: Floats
    stretch: Floats
    factor: Floats
    alpha: Floats

    @classmethod
    def of(cls, x: Floats, owners: NDArray[np.int64], y: Floats, extra: Floats, scales: Scales) -> Gaussian:
        stretch = np.sqrt(scales.weights)[owners] if len(owners) else np.zeros(0)
        stretched = x * stretch
        full = _kernel(stretched, stretched, scales.signal) + np.diag(scales.noise + extra + _JITTER)
        factor = np.asarray(np.linalg.cholesky(full), dtype=np.float64)
        alpha = np.asarray(cho_solve((factor, True), y, check_finite=False), dtype=np.float64)
        return cls(scales=scales, stretched=stretched, stretch=stretch, factor=factor, alpha=alpha)

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the function itself, without the noise of an observation: (n,), (n,)."""
        cross = _kernel(x * self.stretch, self.stretched, self.scales.signal)
        solved = solve_triangular(self.factor, cross.T, lower=True, check_finite=False)
        variance = self.scales.signal - (solved**2).sum(axis=0)
        return np.asarray(cross @ self.alpha, dtype=np.float64), np.sqrt(np.maximum(variance, 1e-12))


def _kernel(one: Floats, other: Floats, signal: float) -> Floats:
    root = _ROOT5 * np.sqrt(squared_distances(one, other))
    return np.asarray(signal * (1.0 + root + root**2 / 3.0) * np.exp(-root), dtype=np.float64)
