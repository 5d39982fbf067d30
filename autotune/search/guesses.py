"""First configurations to try: what an engineer would, who knows the flags and the traffic but measured nothing.

Short requests like many sequences, long prompts a large token budget, and what is cheap to leave on stays on. Four
answers to the one question that the traffic doesn't decide: throughput or latency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.search.encoding import ordered
from autotune.search.points import choose
from autotune.spec.config import PARALLEL_FLAGS, FlagValue
from autotune.spec.space import Point, SearchSpace
from autotune.spec.workload import ClosedLoop, Workload, mean

_SEQUENCES = 256
"""That run at once in an open loop: nothing says how many there will be."""
_ROOMY_BUDGET, _TIGHT_BUDGET = 8192, 2048
"""Batched tokens: vLLM's own choices for offline use and for serving."""

Wanted = Mapping[str, FlagValue]


def guesses(
    space: SearchSpace, workload: Workload, *, start: Point | None, refused: Callable[[Point], bool]
) -> list[Point]:
    """At most four, the most promising first, none twice. A flag that nothing here has a view on stays as in `start`
    (the default's point), or is the middle of its domain.

    One that is refused is tried with more GPUs before it is given up.
    """
    found: list[Point] = []
    for wanted in _wanted(workload):
        point = choose(_Guess(wanted=wanted, start=start or {}), space)
        for eased in [point, *_eased(space, point)]:
            if not refused(eased):
                if eased not in found:
                    found.append(eased)
                break
    return found


def _wanted(workload: Workload) -> list[Wanted]:
    reference = workload.reference
    sequences = max((shape.n for shape in workload.shapes), default=1)
    at_once = reference.arrivals.concurrency * sequences if isinstance(reference.arrivals, ClosedLoop) else _SEQUENCES
    prompt = max((mean(shape.prompt) for shape in workload.shapes), default=0.0)
    roomy = max(_ROOMY_BUDGET, int(2 * prompt))
    on: dict[str, FlagValue] = {
        "enable-prefix-caching": True,
        "enable-chunked-prefill": True,
        "async-scheduling": True,
        "enforce-eager": False,
        "kv-cache-dtype": "fp8",
        "long-prefill-token-threshold": 0,
    }
    small: dict[str, FlagValue] = dict.fromkeys(PARALLEL_FLAGS, 1)
    large: dict[str, FlagValue] = {"tensor-parallel-size": 1_000_000}
    return [
        on | small | {"max-num-seqs": at_once, "max-num-batched-tokens": roomy, "gpu-memory-utilization": 0.92},
        on | large | {"max-num-seqs": at_once, "max-num-batched-tokens": _TIGHT_BUDGET, "gpu-memory-utilization": 0.92},
        on | small | {"max-num-seqs": 2 * at_once, "max-num-batched-tokens": 2 * roomy, "gpu-memory-utilization": 0.95},
        on
        | small
        | {
            "max-num-seqs": max(8, at_once // 3),
            "max-num-batched-tokens": _TIGHT_BUDGET,
            "gpu-memory-utilization": 0.9,
        },
    ]


def _eased(space: SearchSpace, point: Point) -> list[Point]:
    """The same with more GPUs, step by step."""
    eased: list[Point] = []
    for dimension in space.dimensions:
        if dimension.name == "tensor-parallel-size" and dimension.name in point and ordered(dimension):
            values = [v for v in space.values_of(dimension.name) if isinstance(v, int)]
            now = point[dimension.name]
            assert isinstance(now, int)
            eased += [{**point, dimension.name: value} for value in sorted(values) if value > now]
    return eased


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guess:
    """Takes the value nearest to what is wanted."""

    wanted: Wanted
    start: Point

    def suggest_categorical(self, name: str, choices: Sequence[FlagValue], /) -> FlagValue:
        wanted = self._wanted(name)
        if wanted is not None and wanted in choices:
            return next(choice for choice in choices if choice == wanted)
        numbers = [c for c in choices if isinstance(c, int | float) and not isinstance(c, bool)]
        if numbers and isinstance(wanted, int | float) and not isinstance(wanted, bool):
            return min(numbers, key=lambda choice: abs(choice - wanted))
        alike = [c for c in choices if isinstance(c, str) and isinstance(wanted, str) and c.startswith(wanted)]
        if alike:
            return alike[0]
        return self.start[name] if name in self.start else choices[len(choices) // 2]

    def suggest_int(self, name: str, low: int, high: int, /, *, step: int = 1, log: bool = False) -> int:  # noqa: ARG002 (the Chooser's)
        value = self._number(name, (low + high) / 2)
        return min(max(low + round((value - low) / step) * step, low), high)

    def suggest_float(
        self,
        name: str,
        low: float,
        high: float,
        /,
        *,
        step: float | None = None,
        log: bool = False,  # noqa: ARG002
    ) -> float:
        value = min(max(self._number(name, (low + high) / 2), low), high)
        return value if step is None else min(low + round((value - low) / step) * step, high)

    def _wanted(self, name: str) -> FlagValue:
        return self.wanted.get(name, self.start.get(name))

    def _number(self, name: str, default: float) -> float:
        value = self._wanted(name)
        return float(value) if isinstance(value, int | float) else default
