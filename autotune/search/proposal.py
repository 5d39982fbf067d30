"""Which of many points is worth its GPU-seconds most, given all that was measured.

Worth: the expected gain in the volume that the front dominates (`improvement`), times the probability that the engine
starts (`feasibility`) and that every limit is kept, per GPU. Every fifth time the first objective alone is asked for,
because `best` is judged by it and volume cares little for a front's ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.search.encoding import Floats
from autotune.search.feasibility import Feasibility
from autotune.search.improvement import expected_volume, thinned
from autotune.search.known import Knowledge, Known
from autotune.search.surrogate import Surrogate, kept, loss_of
from autotune.spec.objective import Slo
from autotune.spec.space import Point

FIRST_ALONE_EVERY = 5
_BEYOND = 0.1
"""How far beyond the front's worst the reference lies, as a share of its extent: else its ends are worth nothing."""


class Proposer:
    """Keeps what is slow to learn (length scales) between proposals; forgets nothing that a new one would not find."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._surrogate = Surrogate(knowledge.encoding)

    def worth(
        self,
        points: Sequence[Point],
        *,
        pending: Sequence[Point],
        gpus: Sequence[int],
        feasibility: Feasibility | None,
        number: int,
    ) -> Floats | None:
        """(points,), in no unit: only the order means something. None while too little was measured."""
        knowledge = self._knowledge
        objectives, slos = knowledge.objectives, knowledge.slos
        ran, _ = knowledge.view()
        metrics = list(dict.fromkeys([*(o.metric for o in objectives), *(s.metric for s in slos)]))
        self._surrogate.learn(knowledge.ran, view=ran, pending=pending, metrics=metrics)
        models = self._surrogate.models
        if any(objective.metric not in models for objective in objectives):
            return None
        x, seen = (knowledge.encoding.vectors(some) for some in (points, [known.point for known in ran]))
        chance = np.ones(len(points)) if feasibility is None else feasibility.probabilities(points)
        for slo in slos:
            chance = chance * kept(models.get(slo.metric), slo, x)
        ahead = knowledge.encoding.vectors(pending)
        losses, expected = (
            np.stack([objective.sign * models[objective.metric].expected(at) for objective in objectives], axis=1)
            for at in (seen, ahead)
        )
        inside = np.array([self._keeps(known, slos, place, seen) for place, known in enumerate(ran)], dtype=bool)
        cost = np.array(gpus, dtype=np.float64)
        if not inside.any():
            return chance / cost
        losses = np.concatenate([losses[inside], expected])
        if len(objectives) == 1 or number % FIRST_ALONE_EVERY == 0:
            first = loss_of(models[objectives[0].metric], objectives[0], x)
            gain = first.shortfall(float(losses[:, 0].min()))
        else:
            predicted = [loss_of(models[objective.metric], objective, x) for objective in objectives]
            gain = expected_volume(predicted, [tuple(row) for row in losses.tolist()], _reference(losses))
        return np.asarray(gain * chance / cost, dtype=np.float64)

    def _keeps(self, known: Known, slos: Sequence[Slo], place: int, seen: Floats) -> bool:
        """By what is expected at a measured point, which is steadier than what one run showed."""
        if known.lost or not known.complete:
            return False
        models = self._surrogate.models
        return all(
            kept(models[slo.metric], slo, seen[place : place + 1])[0] >= 0.5
            if slo.metric in models
            else known.meets([slo])
            for slo in slos
        )


def _reference(losses: Floats) -> Floats:
    """A little beyond the worst of the front, in every objective."""
    front = np.array(thinned([tuple(row) for row in losses.tolist()]))
    worst, extent = front.max(axis=0), np.ptp(front, axis=0)
    whole = np.ptp(losses, axis=0)
    extent = np.where(extent > 0, extent, np.where(whole > 0, whole, np.abs(worst)))
    return np.asarray(worst + _BEYOND * extent, dtype=np.float64)
