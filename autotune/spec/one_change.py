"""Configurations of a space that differ from its default in one dimension: what a space is looked over by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.problem import Problem
from autotune.spec.space import Bundles, Choice, Dimension, FloatRange, IntRange, Point

_MOST_OF_A_RANGE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`name` None: the default, or the incumbent. `value` is a bundle's option where `name` is a bundle."""

    config: EngineConfig
    name: str | None = None
    value: FlagValue = None
    incumbent: bool = False


def one_change_each(problem: Problem) -> Iterator[Change]:
    """The default, the incumbent, then each value of each dimension with the rest at its default. Of a range its ends
    and some values between them. What breaks a rule of the space is left out: no search would start it."""
    space = problem.space
    default: Mapping[str, FlagValue] = {**problem.defaults, **space.fixed}
    yield Change(config=space.default())
    if problem.incumbent is not None:
        yield Change(config=problem.incumbent, incumbent=True)
    seen = {space.default().key}
    for dimension in space.dimensions:
        for value in _some(dimension):
            if value is None or (dimension.target == "flag" and default.get(dimension.name) == value):
                continue
            config = space.decode(_with_condition(dimension, value, default))
            if config.key not in seen and space.broken_rule(config, problem.defaults) is None:
                seen.add(config.key)
                yield Change(config=config, name=dimension.name, value=value)


def _with_condition(dimension: Dimension, value: FlagValue, default: Mapping[str, FlagValue]) -> Point:
    """`value`, and what makes the dimension take part where the default doesn't."""
    when = dimension.when
    if when is None or when.holds(default):
        return {dimension.name: value}
    return {when.name: when.values[0], dimension.name: value}


def _some(dimension: Dimension) -> Sequence[FlagValue]:
    match dimension.domain:
        case Choice(values=values):
            return list(values)
        case Bundles(options=options):
            return list(options)
        case IntRange(low=low, high=high, step=step, log=log):
            found = {low + round((at - low) / step) * step for at in _spread(low, high, log)}
            return sorted(value for value in found if low <= value <= high)
        case FloatRange(low=low, high=high, step=step, log=log):
            if step is None:
                return sorted({round(at, 6) for at in _spread(low, high, log)})
            return sorted({round(low + round((at - low) / step) * step, 9) for at in _spread(low, high, log)})
        case _:
            assert_never(dimension.domain)


def _spread(low: float, high: float, log: bool) -> list[float]:
    """Both ends, and between them evenly, by ratio where `log`."""
    shares = [index / (_MOST_OF_A_RANGE - 1) for index in range(_MOST_OF_A_RANGE)]
    if log:
        return [low * math.pow(high / low, share) for share in shares]
    return [low + (high - low) * share for share in shares]
