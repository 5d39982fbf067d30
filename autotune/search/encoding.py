"""Points of a search space as vectors, so that near and far mean something.

Every dimension gives one coordinate. Along an ordered domain it runs from 0 to 1, in the logarithm where the range
spans a factor of 8 or more (twice as many sequences is one step, from 16 as from 256); values without an order are 1
apart from each other, and "takes no part" is 1 or more from any value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from autotune.spec.config import FlagValue
from autotune.spec.space import Bundles, Choice, Dimension, FloatRange, IntRange, Point, SearchSpace

Floats = NDArray[np.float64]

_LOG_FROM = 8.0


class Encoding:
    """Of one space. `owners`: the dimension that each column of `vectors` belongs to."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.ordered = [ordered(dimension) for dimension in space.dimensions]
        self._names = [dimension.name for dimension in space.dimensions]
        self._coordinate = [_coordinate(dimension) for dimension in space.dimensions]
        owners: list[int] = []
        for index, dimension in enumerate(space.dimensions):
            owners += [index] * (2 if self.ordered[index] else int(dimension.size) + 1)
        self.owners = np.array(owners, dtype=np.int64)

    def coordinates(self, points: Sequence[Point]) -> Floats:
        """(points, dimensions). NaN where a dimension takes no part; an unordered value's place in its domain."""
        encode = list(zip(self._names, self._coordinate, strict=True))
        rows = [[to(point[name]) if name in point else math.nan for name, to in encode] for point in points]
        return np.array(rows, dtype=np.float64).reshape(len(points), len(encode))

    def vectors(self, points: Sequence[Point]) -> Floats:
        """(points, columns): their squared distance is the sum over the dimensions of the squared gaps."""
        matrix = self.coordinates(points)
        columns: list[Floats] = []
        apart = math.sqrt(0.5)  # two unequal one-hot rows differ in two columns
        for index, dimension in enumerate(self.space.dimensions):
            values = matrix[:, index]
            inactive = np.isnan(values)
            if self.ordered[index]:
                columns += [np.where(inactive, 0.0, values), np.where(inactive, 1.0, 0.0)]
            else:
                columns += [np.where(values == place, apart, 0.0) for place in range(int(dimension.size))]
                columns.append(np.where(inactive, apart, 0.0))
        return np.stack(columns, axis=1) if columns else np.zeros((len(points), 0))

    def distance(self, one: Point, other: Point) -> float:
        first, second = self.vectors([one, other])
        return float(np.sqrt(((first - second) ** 2).sum()))


def squared_distances(one: Floats, other: Floats) -> Floats:
    """(n, columns), (m, columns) -> (n, m)."""
    squared = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None, :] - 2.0 * one @ other.T
    return np.asarray(np.maximum(squared, 0.0), dtype=np.float64)


def ordered(dimension: Dimension) -> bool:
    match dimension.domain:
        case IntRange() | FloatRange():
            return True
        case Choice(values=values):
            return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        case Bundles():
            return False
        case _:
            assert_never(dimension.domain)


def _coordinate(dimension: Dimension) -> Callable[[FlagValue], float]:
    match dimension.domain:
        case IntRange(low=low, high=high, log=log) | FloatRange(low=low, high=high, log=log):
            return _along(low, high, log=log or (low > 0 and high / low >= _LOG_FROM))
        case Choice(values=values) if ordered(dimension):
            ranks = sorted(float(value) for value in values if value is not None)
            return lambda value: ranks.index(_number(value)) / max(1, len(ranks) - 1)
        case Choice(values=values):
            return lambda value: float(values.index(value))
        case Bundles(options=options):
            places = list(options)
            return lambda value: float(places.index(str(value)))
        case _:
            assert_never(dimension.domain)


def _along(low: float, high: float, *, log: bool) -> Callable[[FlagValue], float]:
    if low == high:
        return lambda _: 0.0
    if log:
        return lambda value: math.log(_number(value) / low) / math.log(high / low)
    return lambda value: (_number(value) - low) / (high - low)


def _number(value: FlagValue) -> float:
    assert isinstance(value, int | float)
    return float(value)
