"""What prompts have in common at their beginning: the hits that a prefix cache could have, and what spoils them."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

_SEARCHED = 400
"""Characters after the first difference in which two prompts must come together again."""
_SAME_AGAIN = 80
"""Characters that must be the same there, for the difference to be what spoils a common prefix."""
_SHOWN = 24
_BEFORE = 8


class PrefixCache:
    """vLLM's prefix cache without an end: nothing is ever evicted.

    It finds whole blocks of `block_tokens`, from the start of a prompt, and never a prompt's last token, which has to
    be computed for its answer (vllm/v1/core/kv_cache_manager.py, get_computed_blocks).
    """

    def __init__(self, *, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._after: dict[tuple[int, Hashable], int] = {}
        self._places = itertools.count(1)

    def admit(self, pieces: Iterable[tuple[Hashable, int]]) -> int:
        """Tokens of this prompt that it knows; afterwards it knows all of them. Equal keys are equal tokens."""
        place = shared = total = 0
        known = True
        for key, tokens in pieces:
            total += tokens
            found = self._after.get((place, key)) if known else None
            if found is None:
                known = False
                found = self._after[place, key] = next(self._places)
            else:
                shared += tokens
            place = found
        return min(shared, max(0, total - 1)) // self._block_tokens * self._block_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoiledPrefix:
    """`position` is the character, from 0, at which most of `prompts` begin to differ although they go on alike.

    `before`: the text up to there; `variants`: two of the texts that stand there.
    """

    position: int
    before: str
    variants: tuple[str, str]
    share: float


def spoiled_prefix(texts: Sequence[str], *, most: int = 200) -> SpoiledPrefix | None:
    """Where texts that have a long part in common differ before it, such as in a date; None where they don't.

    Only the first `most` texts are looked at, each beside the one of the last few that has most in common with it, as
    several prompts may take turns. At least half of them must differ so.
    """
    pairs = [
        (max(texts[max(0, place - _BEFORE) : place], key=lambda earlier: _common(earlier, texts[place])), texts[place])
        for place in range(1, min(most, len(texts)))
    ]
    found: list[tuple[int, str, str]] = []
    for one, other in pairs:
        position = _common(one, other)
        if position < min(len(one), len(other)) and _alike_again(one[position:], other[position:]):
            found.append((position, one, other))
    if not pairs or len(found) < max(1, len(pairs) / 2):
        return None
    position, one, other = min(found, key=lambda each: each[0])
    return SpoiledPrefix(
        position=position,
        before=one[max(0, position - _SHOWN) : position],
        variants=(one[position : position + _SHOWN], other[position : position + _SHOWN]),
        share=len(found) / len(pairs),
    )


def _common(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:  # comparing halves is quicker than comparing characters
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _alike_again(one: str, other: str) -> bool:
    """Whether a stretch of `_SAME_AGAIN` characters soon after the beginning of `one` stands near that of `other`."""
    near = other[: _SEARCHED + _SAME_AGAIN]
    return any(
        len(stretch := one[start : start + _SAME_AGAIN]) == _SAME_AGAIN and stretch in near
        for start in range(1, min(_SEARCHED, max(1, len(one) - _SAME_AGAIN)), 4)
    )
