"""Which of several configurations are worth keeping when there is more than one objective.

A loss vector holds one number per objective, smaller is better (`Objective.loss`). Nothing here rounds or tolerates:
noise comes in as intervals, never as an epsilon.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar, overload

Losses = Sequence[float]
Bounds = Sequence[tuple[float, float]]
"""Per objective the optimistic and the pessimistic loss (low <= high)."""

K = TypeVar("K", bound=Hashable)


def dominates(a: Losses, b: Losses) -> bool:
    """No worse in any objective and better in one. NaN dominates nothing and is dominated by nothing."""
    return all(x <= y for x, y in zip(a, b, strict=True)) and any(x < y for x, y in zip(a, b, strict=True))


def surely_dominates(a: Bounds, b: Bounds) -> bool:
    """Even `a` at its worst dominates `b` at its best."""
    return dominates([high for _, high in a], [low for low, _ in b])


@overload
def front(items: Mapping[K, Losses]) -> list[K]: ...
@overload
def front(items: Sequence[Losses]) -> list[int]: ...
def front(items: Mapping[K, Losses] | Sequence[Losses]) -> list[K] | list[int]:
    """Keys (of a sequence: indices) of the items that no other dominates, in the order given. Equal items all stay."""
    if isinstance(items, Mapping):
        return [key for key, losses in items.items() if not any(dominates(other, losses) for other in items.values())]
    return front(dict(enumerate(items)))


def noisy_front(items: Mapping[K, Bounds]) -> list[K]:
    """Keys of the items that may be on the true front: no other surely dominates them."""
    return [key for key, b in items.items() if not any(surely_dominates(a, b) for a in items.values())]


def hypervolume(items: Sequence[Losses], reference: Losses) -> float:
    """Volume of what the items dominate, up to `reference` (items beyond it add nothing); one to three objectives.

    Exact: slices along the last objective, each a sum of shorter volumes.
    """
    if not 1 <= len(reference) <= 3:
        raise ValueError(f"one to three objectives, not {len(reference)}")
    inside = [tuple(item) for item in items if all(x < r for x, r in zip(item, reference, strict=True))]
    if not inside:
        return 0.0
    if len(reference) == 1:
        return reference[0] - min(item[0] for item in inside)
    inside.sort(key=lambda item: item[-1])
    ends = [*(item[-1] for item in inside[1:]), reference[-1]]
    volume = 0.0
    for index, (item, end) in enumerate(zip(inside, ends, strict=True)):
        if end > item[-1]:
            volume += (end - item[-1]) * hypervolume([other[:-1] for other in inside[: index + 1]], reference[:-1])
    return volume
