"""What is sent to an engine and when: request shapes, arrivals, and the rungs (stretches of load) of one trial."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLength:
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLength:
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalLength:
    """Log-normal with the given median and sigma of the log, clipped to [low, high]."""

    median: float
    sigma: float
    low: int
    high: int


Lengths = FixedLength | UniformLength | LogNormalLength


def longest(lengths: Lengths) -> int:
    match lengths:
        case FixedLength(tokens=tokens):
            return tokens
        case UniformLength(high=high) | LogNormalLength(high=high):
            return high
        case _:
            assert_never(lengths)


def mean(lengths: Lengths) -> float:
    """Expected length in tokens; a log-normal's is taken before clipping, then clipped."""
    match lengths:
        case FixedLength(tokens=tokens):
            return tokens
        case UniformLength(low=low, high=high):
            return (low + high) / 2
        case LogNormalLength(median=median, sigma=sigma, low=low, high=high):
            return min(max(median * math.exp(sigma**2 / 2), low), high)
        case _:
            assert_never(lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """`concurrency` clients, each sending its next request when the last one is done."""

    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Open loop: arrivals at `rate_rps` requests per second, whatever the engine does."""

    rate_rps: float


Arrivals = ClosedLoop | Poisson


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Every prompt begins with one of `groups` prefixes of `tokens` tokens (a system prompt, a document)."""

    tokens: int
    groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """Lengths in tokens; `prompt` counts the part after the shared prefix. `n` sequences per request."""

    prompt: Lengths
    output: Lengths
    prefix: SharedPrefix | None = None
    n: int = 1
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Load lasts until `requests` were sent and `duration_s` has passed, whichever is later; then it drains."""

    name: str
    arrivals: Arrivals
    requests: int
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`shapes` are mixed by their `share`s. `reference_rungs` name the rungs that every trial is compared on;
    trial-level columns come from the last of them."""

    name: str
    shapes: tuple[RequestShape, ...]
    rungs: tuple[Rung, ...]
    reference_rungs: tuple[str, ...]
    warm_up_requests: int = 8

    @property
    def longest_request_tokens(self) -> int:
        """Prompt plus output of the longest possible request: the max-model-len it needs."""
        return max(
            (shape.prefix.tokens if shape.prefix else 0) + longest(shape.prompt) + longest(shape.output)
            for shape in self.shapes
        )

    @property
    def reference(self) -> Rung:
        return next(rung for rung in self.rungs if rung.name == self.reference_rungs[-1])
