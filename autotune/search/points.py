"""Points of a search space: choosing one, listing them all, and saying where a configuration lies."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, assert_never

from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.space import Bundles, Choice, Dimension, Domain, FloatRange, IntRange, Point, SearchSpace


class Chooser(Protocol):
    """Decides one value after the other: an Optuna trial, or a row of the initial design."""

    def suggest_categorical(self, name: str, choices: Sequence[FlagValue], /) -> FlagValue: ...
    def suggest_int(self, name: str, low: int, high: int, /, *, step: int = 1, log: bool = False) -> int: ...
    def suggest_float(
        self, name: str, low: float, high: float, /, *, step: float | None = None, log: bool = False
    ) -> float: ...


def choose(chooser: Chooser, space: SearchSpace) -> Point:
    """A value for every dimension that is active, given those before it. It may still break a rule."""
    point: dict[str, FlagValue] = {}
    for dimension in space.dimensions:
        if space.active(dimension, point):
            point[dimension.name] = _choose(chooser, dimension.name, dimension.domain)
    return point


def _choose(chooser: Chooser, name: str, domain: Domain) -> FlagValue:
    match domain:
        case Choice(values=values):
            return chooser.suggest_categorical(name, values)
        case Bundles(options=options):
            return chooser.suggest_categorical(name, tuple(options))
        case IntRange(low=low, high=high, step=step, log=log):
            return chooser.suggest_int(name, low, high - (high - low) % step, step=step, log=log)
        case FloatRange(low=low, high=high, step=step, log=log):
            if step is not None:
                high = low + math.floor((high - low) / step + 1e-9) * step
            return chooser.suggest_float(name, low, high, step=step, log=log)
        case _:
            assert_never(domain)


def every_point(space: SearchSpace) -> Iterator[Point]:
    """All points of a finite space, in the order of its dimensions; raises ValueError for a continuous one."""

    def complete(point: dict[str, FlagValue], rest: Sequence[Dimension]) -> Iterator[Point]:
        if not rest:
            yield point
        elif not space.active(rest[0], point):
            yield from complete(point, rest[1:])
        else:
            for value in _values(rest[0].domain):
                yield from complete({**point, rest[0].name: value}, rest[1:])

    return complete({}, space.dimensions)


def size(space: SearchSpace) -> float:
    """How many points there are at most: conditions are ignored."""
    return math.prod(dimension.size for dimension in space.dimensions)


def _values(domain: Domain) -> Sequence[FlagValue]:
    match domain:
        case Choice(values=values):
            return values
        case Bundles(options=options):
            return tuple(options)
        case IntRange(low=low, high=high, step=step):
            return range(low, high + 1, step)
        case FloatRange(low=low, high=high, step=step):
            if step is None:
                raise ValueError("a continuous range has no list of values")
            return [low + index * step for index in range(math.floor((high - low) / step + 1e-9) + 1)]
        case _:
            assert_never(domain)


def locate(space: SearchSpace, config: EngineConfig, defaults: Mapping[str, FlagValue]) -> Point | None:
    """The point that means the same as `config`; None when there is none, so that nobody has to pretend.

    `defaults` are vLLM's own values: a flag that `config` doesn't give has that value.
    """
    point: dict[str, FlagValue] = {}
    for dimension in space.dimensions:
        if not space.active(dimension, point):
            continue
        match dimension.domain:
            case Bundles(options=options):
                same = [name for name, flags in options.items() if _has(config, flags, defaults)]
                if not same:
                    return None
                point[dimension.name] = max(same, key=lambda name: len(options[name]))  # one may be empty
            case Choice() | IntRange() | FloatRange():
                given = config.env if dimension.target == "env" else config.flags
                value = given.get(dimension.name)
                if value is None and not _contains(dimension.domain, None):
                    value = defaults.get(dimension.name)
                if not _contains(dimension.domain, value):
                    return None
                point[dimension.name] = value
            case _:
                assert_never(dimension.domain)
    same_effect = effective_key(space.decode(point), defaults) == effective_key(config, defaults)
    return point if same_effect else None


def effective_key(config: EngineConfig, defaults: Mapping[str, FlagValue]) -> str:
    """The same text for configurations that start the same engine: a flag given at its default is as if not given."""
    given = {
        name: value
        for name, value in config.flags.items()
        if value is not None and not (name in defaults and _same(value, defaults[name]))
    }
    return json.dumps([config.model, given, dict(config.env)], sort_keys=True)


def _has(config: EngineConfig, flags: Mapping[str, FlagValue], defaults: Mapping[str, FlagValue]) -> bool:
    known = {**defaults, **{name: value for name, value in config.flags.items() if value is not None}}
    known["model"] = config.model
    return all(_same(known.get(name), value) for name, value in flags.items())


def _contains(domain: Domain, value: FlagValue) -> bool:
    match domain:
        case Choice(values=values):
            return any(_same(value, other) for other in values)
        case Bundles(options=options):
            return value in options
        case IntRange(low=low, high=high, step=step):
            return type(value) is int and low <= value <= high and (value - low) % step == 0
        case FloatRange(low=low, high=high, step=step):
            if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
                return False
            return step is None or math.isclose((value - low) / step, round((value - low) / step), abs_tol=1e-9)
        case _:
            assert_never(domain)


def _same(one: FlagValue, other: FlagValue) -> bool:
    """Equal and of one kind: True is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
