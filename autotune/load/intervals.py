"""How far a rung's figures could be off by the luck of its requests: a bootstrap over blocks of requests.

Neighbours in time share a queue and a batch, so single requests (let alone tokens) aren't independent: whole stretches
of about the square root of their number are drawn instead (circular block bootstrap; Politis and Romano 1992). What
differs between two runs of the same configuration isn't in it: repeat the run for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]

BINS = 64
"""Stretches of the throughput's window."""

_DRAWS = 200
_LEVEL = 0.95
_FEWEST = 20
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def rank(q: float, n: int) -> int:
    """Index into the sorted sample of the nearest-rank percentile."""
    return min(max(math.ceil(q * n - 1e-9), 1), n) - 1


def of_percentiles(families: Mapping[str, Floats], *, seed: int = 0) -> dict[str, Interval]:
    """`{ttft_p50_ms: (low, high)}` for values in order of time; a percentile needs a value or more beyond it."""
    found: dict[str, Interval] = {}
    drawn: dict[int, NDArray[np.int64]] = {}
    for family, values in families.items():
        known = values[~np.isnan(values)]
        n = len(known)
        wanted = {name: rank(q, n) for name, q in _PERCENTILES.items() if n >= _FEWEST and n * (1 - q) >= 1 - 1e-9}
        if not wanted:
            continue
        if n not in drawn:
            drawn[n] = _blocks(n, np.random.default_rng(seed))
        resampled = np.partition(known[drawn[n]], sorted(wanted.values()), axis=1)
        for name, index in wanted.items():
            found[f"{family}_{name}_ms"] = _ends(resampled[:, index])
    return found


def of_rates(
    tokens_per_bin: Floats | None,
    good: NDArray[np.bool_],
    figures: Mapping[str, float | None],
    *,
    block_bins: float,
    seed: int = 0,
) -> dict[str, Interval]:
    """Intervals of the rates in `figures`: all follow the tokens of the window's stretches; goodput its share of good
    requests too.

    `block_bins`: a request's usual stay, in stretches. Requests sent together come back together, so throughput
    swings with that period; blocks as long as it hold whole swings.
    """
    if tokens_per_bin is None or len(good) < _FEWEST or tokens_per_bin.sum() <= 0:
        return {}
    random = np.random.default_rng(seed)
    longest = len(tokens_per_bin) // 4
    draws = tokens_per_bin[_blocks(len(tokens_per_bin), random, length=min(max(1, round(block_bins)), longest))]
    relative = draws.mean(axis=1) / tokens_per_bin.mean()
    good_share = good[_blocks(len(good), random)].mean(axis=1) / good.mean() if good.any() else np.ones(_DRAWS)
    found: dict[str, Interval] = {}
    for name, value in figures.items():
        if value is None or ("_per_s" not in name and "goodput" not in name):
            continue
        factor = relative
        if "goodput" in name:
            factor = relative * good_share
        found[name] = _ends(value * factor)
    return found


def _blocks(n: int, random: np.random.Generator, *, length: int | None = None) -> NDArray[np.int64]:
    """Indices of `_DRAWS` resamples of n values, block by block, the last block joined to the first."""
    length = length or max(1, round(math.sqrt(n)))
    starts = random.integers(n, size=(_DRAWS, math.ceil(n / length)))
    indices = (starts[:, :, None] + np.arange(length)) % n
    return indices.reshape(_DRAWS, -1)[:, :n]


def _ends(values: Floats) -> Interval:
    low, high = np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)
