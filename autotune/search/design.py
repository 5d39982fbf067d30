"""The first points of a search: spread over the space, from the seed alone, whatever the results are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from zlib import crc32

import numpy as np

from autotune.search.points import choose
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.live import LiveSplit
from autotune.spec.space import Point, SearchSpace

REPLACEMENTS = 200
"""Random points looked at to replace one that is refused."""


def design_size(space: SearchSpace, trials: int | None) -> int:
    """Two more than there are dimensions, 6 to 10, and at most half the trials: enough for a first model."""
    varied = sum(dimension.size > 1 for dimension in space.dimensions)
    size = min(max(6, varied + 2), 10)
    return size if trials is None else max(1, min(size, trials // 2))


def initial_design(
    space: SearchSpace, *, seed: int, size: int, refused: Callable[[Point], bool], key: Callable[[Point], str]
) -> list[Point]:
    """A Latin hypercube: per dimension, each of `size` equal strata is used once (McKay et al. 1979).

    A point that is refused or repeats another's `key` is replaced by a random one; shorter where none is found.
    """
    order = {
        dimension.name: np.random.default_rng([seed, crc32(dimension.name.encode())]).permutation(size)
        for dimension in space.dimensions
    }
    random = random_points(space, seed=seed, stream=0)
    points: list[Point] = []
    seen: set[str] = set()
    for row in range(size):
        strata = Row(coordinates={name: (int(rows[row]) + 0.5) / size for name, rows in order.items()})
        for point in chain([choose(strata, space)], islice(random, REPLACEMENTS)):
            if key(point) not in seen and not refused(point):
                seen.add(key(point))
                points.append(point)
                break
    return points


def random_points(space: SearchSpace, *, seed: int, stream: int) -> Iterator[Point]:
    """Endless independent points; the same for the same seed and stream."""
    rng = np.random.default_rng([seed, 0x5EED, stream])
    names = [dimension.name for dimension in space.dimensions]
    while True:
        yield choose(Row(coordinates=dict(zip(names, rng.random(len(names)).tolist(), strict=True))), space)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Turns coordinates in [0, 1) into values: equal shares of the interval for equal shares of the domain."""

    coordinates: Mapping[str, float]

    def suggest_categorical(self, name: str, choices: Sequence[FlagValue], /) -> FlagValue:
        return choices[int(self.coordinates[name] * len(choices))]

    def suggest_int(self, name: str, low: int, high: int, /, *, step: int = 1, log: bool = False) -> int:
        share = self.coordinates[name]
        if log:
            value = math.exp(_between(math.log(low - 0.5), math.log(high + 0.5), share))
            return min(max(round(value), low), high)
        return low + step * int(share * ((high - low) // step + 1))

    def suggest_float(
        self, name: str, low: float, high: float, /, *, step: float | None = None, log: bool = False
    ) -> float:
        share = self.coordinates[name]
        if step is not None:
            return low + step * int(share * (round((high - low) / step) + 1))
        return math.exp(_between(math.log(low), math.log(high), share)) if log else _between(low, high, share)


def _between(low: float, high: float, share: float) -> float:
    return low + (high - low) * share


def few_starts(space: SearchSpace, design: Sequence[Point], split: LiveSplit) -> list[Point]:
    """The same design with the launch flags of every third point given to the two after it, so that one engine measures
    three. The design itself where a live setting depends on a launch flag or the other way round: there not every
    mixture is a point."""
    launch = {d.name for d in space.dimensions if d.target != "flag" or d.name not in split.flags}
    searched = {d.name for d in space.dimensions}
    if any(
        d.when is not None and d.when.name in searched and (d.name in launch) != (d.when.name in launch)
        for d in space.dimensions
    ):
        return list(design)
    leaders = [design[index - index % 3] for index in range(len(design))]
    return [
        {
            **{name: value for name, value in point.items() if name not in launch},
            **{name: value for name, value in leader.items() if name in launch},
        }
        for point, leader in zip(design, leaders, strict=True)
    ]


def by_start(design: Sequence[Point], decode: Callable[[Point], EngineConfig], split: LiveSplit) -> list[Point]:
    """Points that one engine can measure next to each other, in the order in which the first of each comes."""
    keys = [split.launch_key(decode(point)) for point in design]
    first = {key: index for index, key in reversed(list(enumerate(keys)))}
    return [point for _, point in sorted(zip(keys, design, strict=True), key=lambda pair: first[pair[0]])]
