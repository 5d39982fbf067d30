"""What is searched: dimensions with their domains, conditions between them, and rules they obey together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, assert_never

from autotune.spec.config import PARALLEL_FLAGS, EngineConfig, FlagValue
from autotune.spec.rules import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    values: tuple[FlagValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntRange:
    """low, low + step, ... up to high, both ends included. With `log`, step must be 1."""

    low: int
    high: int
    step: int = 1
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatRange:
    low: float
    high: float
    step: float | None = None
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundles:
    """Named groups of flags that only make sense together; the key `model` swaps the checkpoint."""

    options: Mapping[str, Mapping[str, FlagValue]]


Domain = Choice | IntRange | FloatRange | Bundles


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Active only while dimension or fixed flag `name` has one of `values`."""

    name: str
    values: tuple[FlagValue, ...]

    def holds(self, flags: Mapping[str, FlagValue]) -> bool:
        return flags.get(self.name) in self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One thing that a candidate decides. `gated` ones may change answers (quantization, KV-cache dtype, ...)."""

    name: str
    domain: Domain
    target: Literal["flag", "env", "bundle"] = "flag"
    when: Condition | None = None
    gated: bool = False

    @property
    def size(self) -> float:
        """How many values it can take; infinite for a continuous range."""
        match self.domain:
            case Choice(values=values):
                return len(values)
            case Bundles(options=options):
                return len(options)
            case IntRange(low=low, high=high, step=step):
                return (high - low) // step + 1
            case FloatRange(low=low, high=high, step=step):
                return math.inf if step is None else math.floor((high - low) / step + 1e-9) + 1
            case _:
                assert_never(self.domain)


GPU_FLAGS = frozenset(
    (
        "gpu-memory-utilization",
        "compilation-config.cudagraph_mode",
        "max-cudagraph-capture-size",
        "cudagraph-capture-sizes",
    )
)
"""A space that has one of these asks for GPUs. (On a CPU gpu-memory-utilization would be a share of the machine's RAM,
which an engine can seldom have: kv-cache-memory-bytes sizes the cache there.)"""

Point = Mapping[str, FlagValue]
"""Dimension name -> value, for the active dimensions only; a bundle's value is its option's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """`dimensions` are ordered so that a condition refers to an earlier dimension or to a fixed flag."""

    name: str
    model: str
    dimensions: tuple[Dimension, ...]
    fixed: Mapping[str, FlagValue] = field(default_factory=dict)
    fixed_env: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()

    def active(self, dimension: Dimension, point: Point) -> bool:
        """Whether `dimension` takes part, given the values already chosen for earlier dimensions."""
        return dimension.when is None or dimension.when.holds({**self.fixed, **point})

    def decode(self, point: Point) -> EngineConfig:
        model, flags, env = self.model, dict(self.fixed), dict(self.fixed_env)
        for dimension in self.dimensions:
            if dimension.name not in point:
                continue
            value = point[dimension.name]
            match dimension.target:
                case "flag":
                    flags[dimension.name] = value
                case "env":
                    if value is not None:
                        env[dimension.name] = str(value)
                case "bundle":
                    assert isinstance(dimension.domain, Bundles)
                    for flag, setting in dimension.domain.options[str(value)].items():
                        if flag == "model":
                            model = str(setting)
                        else:
                            flags[flag] = setting
                case _:
                    assert_never(dimension.target)
        return EngineConfig(model=model, flags=flags, env=env)

    def default(self) -> EngineConfig:
        """vLLM's own defaults plus what the space fixes: trial 0."""
        return EngineConfig(model=self.model, flags=dict(self.fixed), env=dict(self.fixed_env))

    def values_of(self, flag: str) -> Iterator[FlagValue]:
        """What a candidate may give the flag, fixed or searched, in a bundle or by itself; of a range its ends."""
        if flag in self.fixed:
            yield self.fixed[flag]
        for dimension in self.dimensions:
            match dimension.domain:
                case Bundles(options=options):
                    yield from (flags[flag] for flags in options.values() if flag in flags)
                case _ if dimension.name != flag:
                    continue
                case Choice(values=values):
                    yield from values
                case IntRange(low=low, high=high) | FloatRange(low=low, high=high):
                    yield from (low, high)

    def largest_engine(self) -> int:
        """Devices that the largest candidate needs, were every domain at its largest."""
        return math.prod(
            max((int(value) for value in self.values_of(name) if value), default=1) for name in PARALLEL_FLAGS
        )

    def gpu_flag(self) -> str | None:
        """The first flag it sets or searches that only means something on a GPU; None = a CPU engine could run it."""
        named = (*self.fixed, *(dimension.name for dimension in self.dimensions))
        return next((name for name in named if name in GPU_FLAGS), None)

    def broken_rule(self, config: EngineConfig, defaults: Mapping[str, FlagValue]) -> Rule | None:
        """The first rule that `config` breaks. `defaults` stand in for flags it doesn't give; a rule that reads a
        value nobody knows is taken as kept."""
        known = {**defaults, **{name: value for name, value in config.flags.items() if value is not None}}
        return next((rule for rule in self.rules if rule.holds(known) is False), None)
