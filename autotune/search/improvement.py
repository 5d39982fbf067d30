"""What a point may add, in expectation, to the volume that a front dominates: exact, for independent predictions.

The region that nothing known dominates is cut into cells by the front's own coordinates. A point y adds to a cell
[l, u] the product over objectives of (u - max(l, y))+, whose expectation is a difference of two put options' values,
E[(a - Y)+], in closed form for normal and for log-normal predictions (Emmerich et al. 2011, Yang et al. 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from autotune.search.dominance import front as non_dominated
from autotune.search.encoding import Floats

_MOST_CELLS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One objective's predictions for (n,) points, of the loss: smaller is better.

    With `log`, the logarithm of the loss's size is normal: of the loss itself (`sign` 1) or of its opposite (-1,
    something to be maximised).
    """

    mean: Floats
    deviation: Floats
    log: bool = False
    sign: int = 1

    def shortfall(self, level: float) -> Floats:
        """E[(level - Y)+]: how far below the level the loss is expected to be, (n,).

        With the best so far as the level this is the expected improvement of one objective alone.
        """
        mean, deviation = self.mean, self.deviation
        if not self.log:
            z = (level - mean) / deviation
            density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
            return np.asarray((level - mean) * ndtr(z) + deviation * density, dtype=np.float64)
        size = np.exp(mean + 0.5 * deviation**2)
        if self.sign > 0:
            if level <= 0:
                return np.zeros_like(mean)
            z = (np.log(level) - mean) / deviation
            return np.asarray(np.maximum(level * ndtr(z) - size * ndtr(z - deviation), 0.0), dtype=np.float64)
        if level >= 0:
            return np.asarray(level + size, dtype=np.float64)
        z = (np.log(-level) - mean) / deviation
        return np.asarray(np.maximum(size * ndtr(deviation - z) + level * ndtr(-z), 0.0), dtype=np.float64)


def expected_volume(predicted: Sequence[Predicted], front: Sequence[tuple[float, ...]], reference: Floats) -> Floats:
    """(n,). `front`: the losses of what is known, dominated ones and those beyond the reference are left out here."""
    kept = thinned([item for item in front if all(x < r for x, r in zip(item, reference, strict=True))])
    edges = [np.unique([item[j] for item in kept] + [float(reference[j])]) for j in range(len(reference))]
    weights = _free(kept, edges)
    parts = []
    for objective, edge in zip(predicted, edges, strict=True):
        below = np.stack([objective.shortfall(float(level)) for level in edge])
        # The first cell reaches down to minus infinity, where nothing is left to subtract.
        parts.append(np.concatenate([below[:1], np.diff(below, axis=0)]))
    # Axis by axis from the last: (cells, its cells) x (its cells, n), then sums of products over those left.
    total = weights.reshape(-1, weights.shape[-1]).astype(np.float64) @ parts[-1]
    for part in reversed(parts[:-1]):
        total = (total.reshape(-1, len(part), total.shape[-1]) * part).sum(axis=1)
    return np.asarray(total.reshape(-1), dtype=np.float64)


def thinned(items: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """The non-dominated items, and of too many those that are spread widest, so that the cells stay countable."""
    if not items:
        return []
    unique = list(dict.fromkeys(items))
    kept = [unique[index] for index in non_dominated(unique)]
    most = max(2, int(_MOST_CELLS ** (1.0 / len(kept[0]))) - 1)
    if len(kept) <= most:
        return kept
    matrix = np.array(kept)
    scaled = (matrix - matrix.min(axis=0)) / np.maximum(np.ptp(matrix, axis=0), 1e-300)
    chosen = list(dict.fromkeys(int(index) for index in scaled.argmin(axis=0)))
    gap = np.min(np.stack([((scaled - scaled[index]) ** 2).sum(axis=1) for index in chosen]), axis=0)
    while len(chosen) < most:
        chosen.append(int(gap.argmax()))
        gap = np.minimum(gap, ((scaled - scaled[chosen[-1]]) ** 2).sum(axis=1))
    return [kept[index] for index in sorted(chosen)]


def _free(
    front: Sequence[tuple[float, ...]], edges: Sequence[Floats]
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Whether no item of the front dominates the cell that ends at each corner of the grid."""
    free = np.ones(tuple(len(edge) for edge in edges), dtype=bool)
    for item in front:
        # Cells that begin at or above the item in every objective.
        starts = tuple(slice(int(np.searchsorted(edge, x)) + 1, None) for edge, x in zip(edges, item, strict=True))
        free[starts] = False
    return free
