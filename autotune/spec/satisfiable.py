"""Whether any point of a space obeys its rules, found before an engine is started."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from autotune.spec.config import FlagValue
from autotune.spec.rules import Rule
from autotune.spec.space import Bundles, Choice, Dimension, FloatRange, IntRange, SearchSpace

_PER_RANGE = 33
_MOST_POINTS = 20_000


class RuleProblem(Exception):
    """A rule can't be used in this space. `rule` is None when only all rules together are the problem."""

    def __init__(self, problem: str, rule: Rule | None) -> None:
        super().__init__(problem)
        self.problem, self.rule = problem, rule


def check_rules(space: SearchSpace, defaults: Mapping[str, FlagValue]) -> None:
    """Raises RuleProblem for a rule that no point obeys, for rules that no point obeys together, and for one that
    can't be computed (text compared with a number).

    Up to 20,000 points are tried: all of them where the dimensions that the rules read have so few.
    """
    for rule in space.rules:
        if not _obeyed(space, (rule,), defaults):
            raise RuleProblem("no point of this space obeys this rule", rule)
    if len(space.rules) > 1 and not _obeyed(space, space.rules, defaults):
        raise RuleProblem("each rule can be obeyed, but no point of this space obeys all of them", None)


def _obeyed(space: SearchSpace, rules: Sequence[Rule], defaults: Mapping[str, FlagValue]) -> bool:
    dimensions = _involved(space, rules)
    for point in _points(space, dimensions):
        config = space.decode(point)
        known = {**defaults, **{name: value for name, value in config.flags.items() if value is not None}}
        if all(_holds(rule, known) is not False for rule in rules):
            return True
    return False


def _holds(rule: Rule, known: Mapping[str, FlagValue]) -> bool | None:
    try:
        return rule.holds(known)
    except (TypeError, ZeroDivisionError, OverflowError) as error:
        values = ", ".join(f"{name} = {known.get(name)!r}" for name in sorted(rule.names))
        raise RuleProblem(f"this rule can't be computed for {values}: {error}", rule) from None


def _involved(space: SearchSpace, rules: Sequence[Rule]) -> list[Dimension]:
    """The dimensions that the rules read, and those that decide whether one of them is active; in the space's order."""
    names = {name for rule in rules for name in rule.names}
    found: set[str] = set()
    for dimension in reversed(space.dimensions):  # conditions point backwards
        sets = (
            {flag for option in dimension.domain.options.values() for flag in option}
            if isinstance(dimension.domain, Bundles)
            else {dimension.name}
        )
        if sets & names or dimension.name in found:
            found.add(dimension.name)
            if dimension.when is not None:
                found.add(dimension.when.name)
    return [dimension for dimension in space.dimensions if dimension.name in found]


def _points(space: SearchSpace, dimensions: Sequence[Dimension]) -> Iterator[dict[str, FlagValue]]:
    values = [_values(dimension) for dimension in dimensions]
    if math.prod(len(each) for each in values) <= _MOST_POINTS:
        drawn: Iterator[tuple[FlagValue, ...]] = itertools.product(*values)
    else:
        chance = random.Random(0)  # noqa: S311 - no secret: the same points every time
        drawn = (tuple(chance.choice(each) for each in values) for _ in range(_MOST_POINTS))
    for point in drawn:
        chosen: dict[str, FlagValue] = {}
        for dimension, value in zip(dimensions, point, strict=True):
            if space.active(dimension, chosen):
                chosen[dimension.name] = value
        yield chosen


def _values(dimension: Dimension) -> Sequence[FlagValue]:
    """All values of a small domain; both ends and an even spread between them of a large one."""
    match dimension.domain:
        case Choice(values=values):
            return values
        case Bundles(options=options):
            return tuple(options)
        case IntRange(low=low, high=high, step=step):
            count = (high - low) // step
            places = {round(count * part / (_PER_RANGE - 1)) for part in range(_PER_RANGE)}
            return tuple(low + place * step for place in sorted(places))
        case FloatRange(low=low, high=high):
            return tuple(low + (high - low) * part / (_PER_RANGE - 1) for part in range(_PER_RANGE))
        case _:
            assert_never(dimension.domain)
