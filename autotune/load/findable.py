"""How much of a rung's prompts a prefix cache can find again: the most that is no sign of a stale cache."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from autotune.load.prefixes import PrefixCache
from autotune.load.traffic import PlannedRequest, plan
from autotune.spec.workload import Rung, Workload

_TEMPLATE_TOKENS = 64
"""What a chat template may put before every prompt alike."""


def findable_share(workload: Workload, rung: Rung, *, seed: int, requests: int) -> float:
    """Upper bound of prompt tokens found in a cache that was cold at first / prompt tokens, over the first `requests`.

    An endless cache of single tokens, requests one after the other. Of `n` sequences all but the first find the whole
    prompt. A conversation's turns follow each other, which finds as much as any other order; answers are cached too.
    """
    cache = PrefixCache(block_tokens=1)
    found = total = 0
    for request in itertools.islice(_turns(plan(workload, rung, seed=seed)), requests):
        answer = (("answer", request.index, len(request.answers)), request.output_tokens)
        known = cache.admit(itertools.chain(request.pieces(), [answer]))
        if request.is_text:
            known += _TEMPLATE_TOKENS
        found += request.prompt_tokens if request.n > 1 else min(request.prompt_tokens, known)
        total += request.prompt_tokens
    return found / total if total else 0.0


def _turns(planned: Iterator[PlannedRequest]) -> Iterator[PlannedRequest]:
    for request in planned:
        turn: PlannedRequest | None = request
        while turn is not None:
            yield turn
            turn = turn.followed_by(None)
