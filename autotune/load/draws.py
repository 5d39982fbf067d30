"""Random draws that depend on a seed and a purpose alone, so that any of them can be made again without the others."""

from __future__ import annotations

import hashlib
import math
from typing import assert_never

import numpy as np

from autotune.spec.workload import EmpiricalLength, FixedLength, Lengths, LogNormalLength, UniformLength


def generator(seed: int, stream: str, purpose: str, key: object) -> np.random.Generator:
    """An own generator per purpose. Hashed, because Python's `hash` of text differs between processes."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest(seed, stream, purpose, key), "little")))


def digest(seed: int, stream: str, purpose: str, key: object) -> bytes:
    """16 bytes that no other seed, stream, purpose or key has."""
    return hashlib.blake2b(f"{seed}/{stream}/{purpose}/{key}".encode(), digest_size=16).digest()


def tokens(random: np.random.Generator, count: int, vocabulary: range) -> list[int]:
    ids: list[int] = random.integers(vocabulary.start, vocabulary.stop, size=count, dtype=np.int32).tolist()
    return ids


def length(lengths: Lengths, random: np.random.Generator) -> int:
    match lengths:
        case FixedLength(tokens=tokens):
            return tokens
        case UniformLength(low=low, high=high):
            return int(random.integers(low, high, endpoint=True))
        case LogNormalLength(median=median, sigma=sigma, low=low, high=high):
            drawn = random.lognormal(math.log(median), sigma)
            return int(min(max(round(drawn), low), high))
        case EmpiricalLength(values=values, weights=weights):
            upper = np.cumsum(weights)
            return values[min(int(np.searchsorted(upper, random.random() * upper[-1], side="right")), len(values) - 1)]
        case _:
            assert_never(lengths)
