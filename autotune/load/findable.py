"""How much of a rung's prompts a prefix cache can find again: the most that is no sign of a stale cache."""

from __future__ import annotations

import itertools
from array import array

from autotune.load.traffic import plan
from autotune.spec.workload import Rung, Workload

_BLOCK_TOKENS = 16
"""vLLM caches whole blocks, of 16 tokens or more; of smaller ones up to 15 more tokens could be found."""


def findable_share(workload: Workload, rung: Rung, *, seed: int, requests: int) -> float:
    """Upper bound of prompt tokens found in a cache that was cold at first / prompt tokens, over the first `requests`.

    An endless cache, requests one after the other. Of `n` sequences all but the first find the whole prompt.
    """
    seen: set[int] = set()
    found = total = 0
    for request in itertools.islice(plan(workload, rung, seed=seed), requests):
        prompt = request.prompt()
        total += len(prompt)
        matched, key = 0, 0
        for start in range(0, len(prompt) - _BLOCK_TOKENS + 1, _BLOCK_TOKENS):
            key = hash((key, array("q", prompt[start : start + _BLOCK_TOKENS]).tobytes()))
            if key in seen:
                matched += _BLOCK_TOKENS
            seen.add(key)
        if request.n > 1:
            found += len(prompt)
        elif matched:
            found += min(len(prompt), matched + _BLOCK_TOKENS - 1)
    return found / total if total else 0.0
