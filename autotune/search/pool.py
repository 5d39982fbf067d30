"""Points worth a look before one is suggested: all of a small space, else random ones and neighbours of good ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from autotune.search.design import Row, random_points
from autotune.search.points import choose, every_point, size
from autotune.spec.config import FlagValue
from autotune.spec.space import Point, SearchSpace

ALL = 600
"""Spaces up to this size are looked at whole."""
RANDOM = 350
NEAR = 250
_ONE_CHANGE = 0.6
"""Of the neighbours, the share that differs in one dimension only; the rest differ in two."""
_SHORT_STEP = 0.1


def pool(space: SearchSpace, good: Sequence[Point], *, seed: int, number: int) -> list[Point]:
    """The same for the same arguments. Points may repeat, break rules, or have been tried."""
    if size(space) <= ALL:
        return list(every_point(space))
    drawn = list(islice(random_points(space, seed=seed, stream=1_000_003 + number), RANDOM))
    return drawn + list(islice(_neighbours(space, good, np.random.default_rng([seed, 0x9EA2, number])), NEAR))


def _neighbours(space: SearchSpace, good: Sequence[Point], rng: np.random.Generator) -> Iterator[Point]:
    while good and space.dimensions:
        start = good[int(rng.integers(len(good)))]
        most = 1 if rng.random() < _ONE_CHANGE else 2
        changed = set(rng.permutation(len(space.dimensions))[:most].tolist())
        yield choose(
            _Neighbour(
                start=start,
                changed=frozenset(space.dimensions[index].name for index in changed),
                row=Row(coordinates={d.name: float(rng.random()) for d in space.dimensions}),
                short=bool(rng.random() < 0.5),
            ),
            space,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Neighbour:
    """Chooses as `start` does, but for the dimensions that change. A range's value then moves a little (`short`) or
    anywhere; one that `start` doesn't have is new anyway."""

    start: Point
    changed: frozenset[str]
    row: Row
    short: bool

    def suggest_categorical(self, name: str, choices: Sequence[FlagValue], /) -> FlagValue:
        return self.start[name] if self._keeps(name) else self.row.suggest_categorical(name, choices)

    def suggest_int(self, name: str, low: int, high: int, /, *, step: int = 1, log: bool = False) -> int:
        start = self._number(name)
        value = self.row.suggest_int(name, low, high, step=step, log=log)
        if start is None:
            return value
        if self._keeps(name):
            return int(start)
        near = int(start) + round((value - start) * _SHORT_STEP / step) * step
        return min(max(near, low), high) if self.short else value

    def suggest_float(
        self, name: str, low: float, high: float, /, *, step: float | None = None, log: bool = False
    ) -> float:
        start = self._number(name)
        value = self.row.suggest_float(name, low, high, step=step, log=log)
        if start is None:
            return value
        if self._keeps(name):
            return start
        near = start + (value - start) * _SHORT_STEP
        if not self.short:
            return value
        return near if step is None else low + round((near - low) / step) * step

    def _number(self, name: str) -> float | None:
        value = self.start.get(name)
        return value if isinstance(value, int | float) else None

    def _keeps(self, name: str) -> bool:
        return name in self.start and name not in self.changed
