"""Whether an engine is likely to start, from which points ran and which couldn't.

TPE alone goes on suggesting beyond a memory limit while the best points lie at its edge: it has no notion of a
boundary. This has: a point is likely to run if the nearest one that ran is clearly nearer than the nearest that
couldn't, where near is measured along the dimensions that tell the two kinds apart. So a limit on one flag is found by
bisection, whatever the others do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from autotune.spec.config import FlagValue
from autotune.spec.space import Bundles, Choice, Dimension, FloatRange, IntRange, Point, SearchSpace

FEWEST = 2
"""Points of each kind before anything is said."""
MARGIN = 0.7
"""A point must be this much nearer to what ran: a failed start costs as much as a measured trial and shows less."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feasibility:
    """Immutable; learn a new one when something was told."""

    space: SearchSpace
    weights: Floats
    ran: Floats
    failed: Floats

    @classmethod
    def learn(cls, space: SearchSpace, *, ran: Sequence[Point], failed: Sequence[Point]) -> Feasibility | None:
        """None while there is too little to learn from."""
        if min(len(ran), len(failed)) < FEWEST:
            return None
        good, bad = _matrix(space, ran), _matrix(space, failed)
        separation = np.array(
            [_separation(d, good[:, column], bad[:, column]) for column, d in enumerate(space.dimensions)]
        )
        chance = 1.0 / math.sqrt(len(ran) + len(failed))  # what an irrelevant dimension reaches by luck
        weights = np.maximum(separation - chance, 0.0) + 0.02  # never quite nothing: ties are broken by all of them
        return cls(space=space, weights=weights, ran=good, failed=bad)

    def likely(self, point: Point) -> bool:
        (vector,) = _matrix(self.space, [point])
        to_ran, to_failed = (_distances(self.space, vector, kind, self.weights) for kind in (self.ran, self.failed))
        return bool(to_ran.min() <= MARGIN * to_failed.min())


def distance(space: SearchSpace, one: Point, other: Point) -> float:
    """Euclidean, each dimension scaled to [0, 1]; values without an order, and inactive ones, are 1 apart."""
    first, second = _matrix(space, [one, other])
    return float(_distances(space, first, second[None, :], np.ones(len(space.dimensions)))[0])


def _distances(space: SearchSpace, vector: Floats, others: Floats, weights: Floats) -> Floats:
    ordered = np.array([_ordered(dimension) for dimension in space.dimensions])
    inactive = np.isnan(others) & np.isnan(vector)
    gaps = np.where(ordered, np.abs(others - vector), (others != vector).astype(np.float64))
    gaps = np.where(inactive, 0.0, np.where(np.isnan(gaps), 1.0, gaps))
    return np.asarray(np.sqrt(((gaps * weights) ** 2).sum(axis=1)), dtype=np.float64)


def _separation(dimension: Dimension, good: Floats, bad: Floats) -> float:
    """0: says nothing about which kind a point is; 1: says all. Inactive (NaN) is a value of its own."""
    if _ordered(dimension) and not (np.isnan(good).any() or np.isnan(bad).any()):
        above = (bad[:, None] > good[None, :]).mean() + 0.5 * (bad[:, None] == good[None, :]).mean()
        return float(abs(2 * above - 1))  # from the area under the ROC curve
    values = np.concatenate([good, bad])
    kinds = np.concatenate([np.zeros(len(good)), np.ones(len(bad))])
    share = kinds.mean()
    groups = [kinds[np.isnan(values)], *(kinds[values == value] for value in np.unique(values[~np.isnan(values)]))]
    explained = sum(len(group) * (group.mean() - share) ** 2 for group in groups if len(group))
    return math.sqrt(explained / (len(kinds) * share * (1 - share)))  # correlation ratio


def _matrix(space: SearchSpace, points: Sequence[Point]) -> Floats:
    rows = [
        [_coordinate(d, point[d.name]) if d.name in point else math.nan for d in space.dimensions] for point in points
    ]
    return np.array(rows, dtype=np.float64).reshape(len(points), len(space.dimensions))


def _ordered(dimension: Dimension) -> bool:
    match dimension.domain:
        case IntRange() | FloatRange():
            return True
        case Choice(values=values):
            return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        case Bundles():
            return False
        case _:
            assert_never(dimension.domain)


def _coordinate(dimension: Dimension, value: FlagValue) -> float:
    """[0, 1] along an ordered domain; elsewhere the value's place, which only serves to tell values apart."""
    match dimension.domain:
        case IntRange(low=low, high=high, log=log) | FloatRange(low=low, high=high, log=log):
            assert isinstance(value, int | float)
            if low == high:
                return 0.0
            return math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
        case Choice(values=values):
            if not _ordered(dimension):
                return float(values.index(value))
            below = sum(float(other) < float(value) for other in values if other is not None and value is not None)
            return below / max(1, len(values) - 1)
        case Bundles(options=options):
            return float(list(options).index(str(value)))
        case _:
            assert_never(dimension.domain)
