"""Whether an engine is likely to start, from which points ran and which couldn't.

TPE alone goes on suggesting beyond a memory limit while the best points lie at its edge: it has no notion of a
boundary. This has: a point is likely to run if the nearest one that ran is clearly nearer than the nearest that
couldn't, where near is measured along the dimensions that tell the two kinds apart. So a limit on one flag is found by
bisection, whatever the others do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.search.encoding import Encoding, Floats, squared_distances
from autotune.spec.space import Point

FEWEST = 2
"""Points of each kind before anything is said."""
MARGIN = 0.7
"""A point must be this much nearer to what ran: a failed start costs as much as a measured trial and shows less."""
CAREFUL_MARGIN = 0.3
RECENT = 20
FAILURES = 0.04
"""Where more than this share of the recent starts failed, the careful margin holds: bisecting an edge ever more finely
costs a failure for every other step and gains less each time."""
BOLD_MARGIN = 1.0
"""Of the few suggestions that put the belief to the test: as near to what ran as to what failed."""
RESOLUTION = 0.012
"""Of a domain's extent. An edge is never looked for more closely: what is gained is less, and each look may fail."""
_SAME = 1e-6
_STEEP = 6.0
_EVEN = 0.85
"""Odds of 1 at this ratio of the two distances, and how fast they change with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feasibility:
    """Immutable; learn a new one when something was told. `stretch`: what each column of a vector counts."""

    encoding: Encoding
    stretch: Floats
    ran: Floats
    failed: Floats
    margin: float = MARGIN

    @classmethod
    def learn(
        cls, encoding: Encoding, *, ran: Sequence[Point], failed: Sequence[Point], margin: float = MARGIN
    ) -> Feasibility | None:
        """None while there is too little to learn from."""
        if min(len(ran), len(failed)) < FEWEST:
            return None
        good, bad = encoding.coordinates(ran), encoding.coordinates(failed)
        separation = np.array(
            [
                _separation(good[:, column], bad[:, column], ordered=ordered)
                for column, ordered in enumerate(encoding.ordered)
            ]
        )
        chance = 1.0 / math.sqrt(len(ran) + len(failed))  # what an irrelevant dimension reaches by luck
        weights = np.maximum(separation - chance, 0.0) + 0.02  # never quite nothing: ties are broken by all of them
        stretch = weights[encoding.owners]
        return cls(
            encoding=encoding,
            stretch=stretch,
            ran=encoding.vectors(ran) * stretch,
            failed=encoding.vectors(failed) * stretch,
            margin=margin,
        )

    def likely(self, point: Point) -> bool:
        return bool(self.probabilities([point])[0] > 0)

    def probabilities(self, points: Sequence[Point]) -> Floats:
        """Of starting, (points,); 0 for those that aren't likely to."""
        vectors = self.encoding.vectors(points) * self.stretch
        to_ran, to_failed = (np.sqrt(squared_distances(vectors, kind).min(axis=1)) for kind in (self.ran, self.failed))
        ratios = np.where(to_ran <= _SAME, 0.0, to_ran / np.maximum(to_failed, _SAME))
        likely = (ratios <= self.margin) & ((to_failed > RESOLUTION * self.stretch.max()) | (to_ran <= _SAME))
        return np.asarray(np.where(likely, 1.0 / (1.0 + (ratios / _EVEN) ** _STEEP), 0.0), dtype=np.float64)


def margin_for(outcomes: Sequence[bool]) -> float:
    """How sure a start must be, from whether each earlier one succeeded, in order."""
    recent = outcomes[-RECENT:]
    return CAREFUL_MARGIN if recent.count(False) > FAILURES * len(recent) else MARGIN


def _separation(good: Floats, bad: Floats, *, ordered: bool) -> float:
    """0: says nothing about which kind a point is; 1: says all. Inactive (NaN) is a value of its own."""
    if ordered and not (np.isnan(good).any() or np.isnan(bad).any()):
        above = (bad[:, None] > good[None, :]).mean() + 0.5 * (bad[:, None] == good[None, :]).mean()
        return float(abs(2 * above - 1))  # from the area under the ROC curve
    values = np.concatenate([good, bad])
    kinds = np.concatenate([np.zeros(len(good)), np.ones(len(bad))])
    share = kinds.mean()
    groups = [kinds[np.isnan(values)], *(kinds[values == value] for value in np.unique(values[~np.isnan(values)]))]
    explained = sum(len(group) * (group.mean() - share) ** 2 for group in groups if len(group))
    return math.sqrt(explained / (len(kinds) * share * (1 - share)))  # correlation ratio
