"""What failures rule out: values and pairs that no engine here can have, and memory that is known to be too little.

A failure names a flag and what its value must be (`Bound`), sometimes under a condition that names another
("max-num-seqs is 512"). A value refused for itself is refused whatever the rest; a pair is refused as a pair. A failure
for lack of memory rules out what is at least as hungry in every flag and equal in those that nobody can compare. Where
a failure names nothing, what ran tells: the one value, or the one pair, of the failed configuration that was never seen
running.

Nothing is ruled out that contradicts an engine that ran. What is ruled out depends on what was told, not on the order.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.verdict import Bound, Infeasible

_CONDITION = re.compile(r"^([a-z][a-z0-9.-]*) is (\S+)$")
_WORDED: Mapping[str, tuple[str, str]] = {"chunked prefill is off": ("enable-chunked-prefill", "False")}

_MORE = ("max-model-len", "max-num-seqs", "max-num-batched-tokens", "max-cudagraph-capture-size")
"""More of it needs more memory."""
_LESS = ("tensor-parallel-size", "pipeline-parallel-size")
"""Less of it leaves each GPU more to hold."""
_LARGER_LAST: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "kv-cache-dtype": (("fp8", "fp8_e4m3", "fp8_e5m2"), ("auto", "bfloat16", "float16")),
    "enforce-eager": (("True",), ("False",)),
}
"""Values that need the same, from what needs least memory."""
_SHARE = "gpu-memory-utilization"
_TOO_LITTLE = ("capacity.",)
"""Failures that a larger share of the device's memory would mend."""
_TOO_MUCH = ("oom.runtime", "oom.graph_capture", "oom.sampler_warmup")
"""Failures that a smaller share would mend: the rest of the device is what was missing."""


Conditions = list[tuple[str, str]]
"""Flags and their values, as text."""


@dataclass(slots=True, kw_only=True)
class _Failure:
    """`bounds` (each with its condition) and `hungry` hold as long as nothing that ran speaks against them."""

    flags: Mapping[str, FlagValue]
    cause: str
    bounds: list[tuple[Bound, Conditions]]
    hungry: bool
    named: bool

    def hear(self, ran: Mapping[str, FlagValue]) -> None:
        self.bounds = [(bound, when) for bound, when in self.bounds if not _refuses(bound, when, ran)]
        self.hungry = self.hungry and not _as_hungry(ran, self.flags, self.cause)


class Dead:
    """Grows with every trial. `defaults`: vLLM's values of flags that a configuration doesn't give."""

    def __init__(self, defaults: Mapping[str, FlagValue]) -> None:
        self._defaults = defaults
        self._failures: list[_Failure] = []
        self._ran: list[dict[str, FlagValue]] = []
        self._seen: set[tuple[str, str]] = set()

    def ran(self, config: EngineConfig) -> None:
        flags = self._flags(config)
        if flags not in self._ran:
            self._ran.append(flags)
            self._seen |= {(name, str(value)) for name, value in flags.items()}
            for failure in self._failures:
                failure.hear(flags)

    def failed(self, config: EngineConfig, verdict: Infeasible) -> None:
        of_config = verdict.cause.startswith("config.")
        conditions = [(bound, _conditions(bound)) for bound in verdict.bounds] if of_config else []
        failure = _Failure(
            flags=self._flags(config),
            cause=verdict.cause,
            bounds=[(bound, when) for bound, when in conditions if when is not None],
            hungry=verdict.cause.startswith(("capacity.", "oom.")),
            named=bool(verdict.bounds) or not of_config,
        )
        for flags in self._ran:
            failure.hear(flags)
        self._failures.append(failure)

    def why(self, config: EngineConfig) -> str | None:
        """Why no engine can run like this, as far as is known; None where it may."""
        flags = self._flags(config)
        if flags in self._ran:
            return None
        return next((why for failure in self._failures if (why := self._by(failure, flags)) is not None), None)

    def _by(self, failure: _Failure, flags: Mapping[str, FlagValue]) -> str | None:
        for bound, when in failure.bounds:
            if _refuses(bound, when, flags):
                return f"{bound.flag} {flags[bound.flag]} can't be had ({failure.cause})"
        if failure.hungry and _as_hungry(flags, failure.flags, failure.cause):
            return f"it needs at least as much memory as one that had too little ({failure.cause})"
        singled = {} if failure.named else self._singled_out(failure.flags)
        if not singled or not singled.items() <= _texts(flags).items():
            return None
        named = " with ".join(f"{name} {value}" for name, value in singled.items())
        return f"{named} can't be had ({failure.cause})"

    def _singled_out(self, failed: Mapping[str, FlagValue]) -> dict[str, str]:
        """The one value that never ran; else the one pair; empty where there are more that it may be."""
        atoms = list(_texts(failed).items())
        fresh = [atom for atom in atoms if atom not in self._seen]
        if fresh:
            return dict(fresh) if len(fresh) == 1 and self._ran else {}
        together = [set(_texts(ran).items()) for ran in self._ran]
        pairs = [
            pair for pair in itertools.combinations(atoms, 2) if not any(set(pair) <= others for others in together)
        ]
        return dict(pairs[0]) if len(pairs) == 1 else {}

    def _flags(self, config: EngineConfig) -> dict[str, FlagValue]:
        given = {name: value for name, value in config.flags.items() if value is not None}
        return {**self._defaults, **given, "model": config.model, **{f"env {k}": v for k, v in config.env.items()}}


def _texts(flags: Mapping[str, FlagValue]) -> dict[str, str]:
    return {name: str(value) for name, value in flags.items()}


def _conditions(bound: Bound) -> Conditions | None:
    """Flag and value, all of which must hold; None where the condition can't be read."""
    if bound.when is None:
        return []
    found: Conditions = []
    for clause in bound.when.split(" and "):
        match = _CONDITION.match(clause)
        if clause in _WORDED:
            found.append(_WORDED[clause])
        elif match is not None:
            found.append((match[1], match[2]))
        else:
            return None
    return found


def _refuses(bound: Bound, conditions: Conditions, flags: Mapping[str, FlagValue]) -> bool:
    return all(str(flags.get(name)) == value for name, value in conditions) and _breaks(bound, flags)


def _breaks(bound: Bound, flags: Mapping[str, FlagValue]) -> bool:
    """A flag that isn't given, and has no known default, breaks nothing."""
    value = flags.get(bound.flag)
    if value is None:
        return False
    if bound.unknown or (bound.none_of is not None and str(value) in bound.none_of):
        return True
    if bound.one_of is not None and str(value) not in bound.one_of:
        return True
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return any(_limits(bound, float(value)))


def _limits(bound: Bound, value: float) -> Iterator[bool]:
    yield bound.at_most is not None and value > bound.at_most
    yield bound.below is not None and value >= bound.below
    yield bound.at_least is not None and value < bound.at_least
    yield bound.above is not None and value <= bound.above
    yield bound.divides is not None and value > 0 and bound.divides % value != 0


def _as_hungry(flags: Mapping[str, FlagValue], other: Mapping[str, FlagValue], cause: str) -> bool:
    """Whether `flags` need at least as much memory as `other` in every respect."""
    for name in {*flags, *other}:
        mine, theirs = flags.get(name), other.get(name)
        if str(mine) == str(theirs):
            continue
        sign = _direction(name, cause)
        ranks = [_rank(name, value) for value in (mine, theirs)]
        if sign == 0 or ranks[0] is None or ranks[1] is None or sign * (ranks[0] - ranks[1]) < 0:
            return False
    return True


def _direction(name: str, cause: str) -> int:
    """1: more of it is hungrier; -1: less is; 0: nobody knows."""
    if name == _SHARE:
        return -1 if cause.startswith(_TOO_LITTLE) else 1 if cause in _TOO_MUCH else 0
    return 1 if name in _MORE or name in _LARGER_LAST else -1 if name in _LESS else 0


def _rank(name: str, value: FlagValue) -> float | None:
    if name in _LARGER_LAST:
        return next((rank for rank, same in enumerate(_LARGER_LAST[name]) if str(value) in same), None)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
