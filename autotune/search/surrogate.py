"""What every metric is expected to be at points that weren't measured, one Gaussian process per metric.

Throughputs and latencies are positive and differ by factors, so their logarithms are modelled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from autotune.search.encoding import Encoding, Floats
from autotune.search.gaussian import Gaussian, Scales, fit
from autotune.search.improvement import Predicted
from autotune.search.known import Known
from autotune.spec.objective import Objective, Slo
from autotune.spec.space import Point

FEWEST = 3
"""Measured values of a metric before anything is predicted from them."""
_UNSURE = 0.15
"""How much less sure a stopped trial's value is: a standard deviation, relative (log) or in units of the spread."""
_FIT_POINTS = 100
_GROWTH = 1.2


def fitted_at(count: int) -> int:
    """The number of values from which the scales are learnt when there are `count`: they settle long before the
    predictions do, and are what takes time. Grows by a fifth from step to step."""
    step = FEWEST
    while (following := max(step + 1, int(step * _GROWTH))) <= count:
        step = following
    return min(step, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricModel:
    """Of one metric. `log`: `y` is the standardised logarithm."""

    log: bool
    centre: float
    spread: float
    process: Gaussian

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the value or of its logarithm."""
        mean, deviation = self.process.predict(x)
        return mean * self.spread + self.centre, deviation * self.spread

    def expected(self, x: Floats) -> Floats:
        """The value itself (of a logarithm: its median), (n,)."""
        mean, _ = self.predict(x)
        return np.exp(mean) if self.log else mean

    def below(self, limit: float, x: Floats) -> Floats:
        """The probability that the value is at most `limit`, (n,)."""
        if self.log and limit <= 0:
            return np.zeros(len(x))
        mean, deviation = self.predict(x)
        return np.asarray(ndtr(((math.log(limit) if self.log else limit) - mean) / deviation), dtype=np.float64)


class Surrogate:
    """`models` has the metrics with enough values to say anything. Scales are learnt anew only now and then
    (`fitted_at`), from what was told up to then: so they depend on the order of telling, and on nothing else."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._scales: dict[tuple[str, int, bool], Scales] = {}
        self.models: dict[str, MetricModel] = {}

    def learn(
        self, everything: Sequence[Known], *, view: Sequence[Known], pending: Sequence[Point], metrics: Sequence[str]
    ) -> None:
        """From `everything` that ran, of which `view` is looked at. `pending` points count as if they had given what
        is expected of them, so that those that run at once don't all go to one place."""
        ahead = self._encoding.vectors(pending)
        self.models = {}
        for metric in metrics:
            seen = [known for known in view if metric in known.values]
            if len(seen) < FEWEST:
                continue
            log = all(known.values[metric] > 0 for known in seen)
            scales = self._learn_scales(metric, everything, log=log)
            x, y, extra, centre, spread = self._standardised(metric, seen, log=log)
            process = Gaussian.of(x, self._encoding.owners, y, extra, scales)
            if len(ahead):
                guess, _ = process.predict(ahead)
                more = np.concatenate([x, ahead]), np.concatenate([y, guess]), np.append(extra, np.zeros(len(ahead)))
                process = Gaussian.of(more[0], self._encoding.owners, more[1], more[2], scales)
            self.models[metric] = MetricModel(log=log, centre=centre, spread=spread, process=process)

    def _learn_scales(self, metric: str, everything: Sequence[Known], *, log: bool) -> Scales:
        at = fitted_at(len(everything))
        if (metric, at, log) not in self._scales:
            early = [k for k in everything[:at] if metric in k.values and (k.values[metric] > 0 or not log)]
            x, y, extra, _, _ = self._standardised(metric, early[-_FIT_POINTS:], log=log)
            self._scales[metric, at, log] = fit(x, self._encoding.owners, y, extra)
        return self._scales[metric, at, log]

    def _standardised(
        self, metric: str, seen: Sequence[Known], *, log: bool
    ) -> tuple[Floats, Floats, Floats, float, float]:
        """Vectors, values, how much less sure each is (a variance), and the centre and spread that were taken out."""
        x = self._encoding.vectors([known.point for known in seen])
        raw = np.array([known.values[metric] for known in seen], dtype=np.float64)
        raw = np.log(raw) if log else raw
        centre, spread = (float(raw.mean()), float(raw.std()) or 1.0) if len(raw) else (0.0, 1.0)
        unsure = _UNSURE / spread if log else _UNSURE
        extra = np.array([0.0 if known.complete else unsure**2 for known in seen], dtype=np.float64)
        return x, (raw - centre) / spread, extra, centre, spread


def loss_of(model: MetricModel, objective: Objective, x: Floats) -> Predicted:
    """The prediction turned so that smaller is better."""
    mean, deviation = model.predict(x)
    mean = mean if model.log else objective.sign * mean
    return Predicted(mean=mean, deviation=deviation, log=model.log, sign=objective.sign)


def kept(model: MetricModel | None, slo: Slo, x: Floats) -> Floats:
    """The probability that a limit is kept, (n,); even where nothing is known."""
    if model is None:
        return np.full(len(x), 0.5)
    below = model.below(slo.limit, x)
    return 1.0 - below if slo.at_least else below
