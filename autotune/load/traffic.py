"""The requests of one rung: lengths, prompts and arrival times, all derived from a seed.

A request depends on the seed, the rung's name and its own index alone, so any of them can be made again without those
before it, and no two rungs or trials (different seeds) send the same prompt: a warm prefix cache can't be measured by
accident. A shared prefix is the same within its group and rung, and new in the next rung.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

import numpy as np

from autotune.spec.workload import (
    ClosedLoop,
    FixedLength,
    Lengths,
    LogNormalLength,
    Poisson,
    RequestShape,
    Rung,
    UniformLength,
    Workload,
)

SAFE_VOCABULARY = range(300, 1800)
"""Ordinary tokens in any current tokenizer: above the special, byte and control tokens that come first."""

_MARGIN = 300
"""Token ids left out at either end of a vocabulary, where special and padding tokens lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """What will be sent. `scheduled_s` is the arrival in an open loop and None in a closed one.

    `prompt_tokens` includes the shared prefix of `prefix_tokens`; `output_tokens` is per sequence.
    """

    index: int
    scheduled_s: float | None
    prompt_tokens: int
    output_tokens: int
    n: int = 1
    prefix_tokens: int = 0
    prefix_group: str | None = None
    seed: int = 0
    stream: str = ""
    vocabulary: range = field(default=SAFE_VOCABULARY, repr=False)

    def prompt(self) -> list[int]:
        """Token ids, `prompt_tokens` of them."""
        own = _random(self.seed, self.stream, "prompt", self.index)
        ids = _tokens(own, self.prompt_tokens - self.prefix_tokens, self.vocabulary)
        if self.prefix_group is None:
            return ids
        shared = _random(self.seed, self.stream, "prefix", self.prefix_group)
        return _tokens(shared, self.prefix_tokens, self.vocabulary) + ids


def plan(workload: Workload, rung: Rung, *, seed: int, vocabulary: range = SAFE_VOCABULARY) -> Iterator[PlannedRequest]:
    """The rung's requests in order of sending, without end: whoever sends them decides when the rung is over.

    Raises ValueError for a vocabulary without tokens and for shapes whose shares don't add up to something.
    """
    if len(vocabulary) < 1:
        raise ValueError("a vocabulary needs at least one token")
    shares = np.array([shape.share for shape in workload.shapes], dtype=float)
    if not len(shares) or shares.min() < 0 or shares.sum() <= 0:
        raise ValueError("the shapes' shares must be at least 0 and not all 0")
    upper = np.cumsum(shares / shares.sum())
    for index, arrival in zip(itertools.count(), _arrivals(rung, seed=seed), strict=False):
        random = _random(seed, rung.name, "shape", index)
        which = min(int(np.searchsorted(upper, random.random(), side="right")), len(shares) - 1)
        shape = workload.shapes[which]
        tokens = _length(shape.prompt, random)
        prefix_tokens, group = _prefix(shape, which, random)
        yield PlannedRequest(
            index=index,
            scheduled_s=arrival,
            prompt_tokens=prefix_tokens + tokens,
            output_tokens=max(1, _length(shape.output, random)),
            n=shape.n,
            prefix_tokens=prefix_tokens,
            prefix_group=group,
            seed=seed,
            stream=rung.name,
            vocabulary=vocabulary,
        )


def vocabulary_of(model: str) -> range:
    """Ordinary tokens of a model on disk, from its config.json; `SAFE_VOCABULARY` where that can't be read.

    A model named on a hub isn't looked up: prompts drawn from 1,500 tokens are as good for load as any other.
    """
    try:
        config = json.loads((Path(model) / "config.json").read_text())
        size = int((config.get("text_config") or config)["vocab_size"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return SAFE_VOCABULARY
    if size > 4 * _MARGIN:
        return range(_MARGIN, size - _MARGIN)
    return range(min(_MARGIN, size // 4), max(size // 4 + 1, size - size // 4))


def _arrivals(rung: Rung, *, seed: int) -> Iterator[float | None]:
    match rung.arrivals:
        case ClosedLoop():
            yield from itertools.repeat(None)
        case Poisson(rate_rps=rate_rps):
            random = _random(seed, rung.name, "arrivals", 0)
            at_s = 0.0
            while True:
                for gap_s in random.exponential(1.0 / rate_rps, size=256).tolist():
                    at_s += gap_s
                    yield at_s
        case _:
            assert_never(rung.arrivals)


def _prefix(shape: RequestShape, which: int, random: np.random.Generator) -> tuple[int, str | None]:
    if shape.prefix is None or shape.prefix.tokens == 0:
        return 0, None
    return shape.prefix.tokens, f"{which}.{int(random.integers(shape.prefix.groups))}"


def _length(lengths: Lengths, random: np.random.Generator) -> int:
    match lengths:
        case FixedLength(tokens=tokens):
            return tokens
        case UniformLength(low=low, high=high):
            return int(random.integers(low, high, endpoint=True))
        case LogNormalLength(median=median, sigma=sigma, low=low, high=high):
            drawn = random.lognormal(math.log(median), sigma)
            return int(min(max(round(drawn), low), high))
        case _:
            assert_never(lengths)


def _tokens(random: np.random.Generator, count: int, vocabulary: range) -> list[int]:
    ids: list[int] = random.integers(vocabulary.start, vocabulary.stop, size=count, dtype=np.int32).tolist()
    return ids


def _random(seed: int, stream: str, purpose: str, key: object) -> np.random.Generator:
    """An own generator per purpose. Hashed, because Python's `hash` of text differs between processes."""
    digest = hashlib.blake2b(f"{seed}/{stream}/{purpose}/{key}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
