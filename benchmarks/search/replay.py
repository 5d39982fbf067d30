"""A trial replayed from its problem's table: starts, ends and figures as enumerated, with the luck of a run.

A run's figures are the table's times a factor of its own (log-normal, the problem's between-run CV; throughput and
latencies move against each other as they do when a machine is slow). What its rung showed so far, after a share s of
it, is that times exp(sigma B(s) / s), with B a Brownian motion and sigma the rung's own standard error: successive
looks depend on each other, as real ones do, and the intervals are honest.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from autotune.spec.measurement import Measurement
from benchmarks.search.problems import WARM_UP_S, Case, within
from benchmarks.search.table import Row

LOOK_S = 1.0
"""Between two looks at a running rung."""
_Z = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """After `at_s` of the trial. The last one is complete; without a `measurement` the engine failed or died."""

    at_s: float
    measurement: Measurement | None


def looks(case: Case, row: Row, *, seed: int, every_s: float | None = LOOK_S) -> Iterator[Look]:
    """What a trial shows while it runs; with `every_s` None only its end. A start that fails shows its end alone."""
    if row.cause is not None:
        yield Look(at_s=row.start_s + (WARM_UP_S + row.load_s if row.load_s else 0.0), measurement=None)
        return
    rng = np.random.default_rng([seed, zlib.crc32(row.key.encode())])
    luck = rng.normal(0.0, case.cv)
    own = {metric: rng.normal(0.0, case.cv / 2) for metric in row.values}
    walk = dict.fromkeys(row.values, 0.0)
    begin_s = row.start_s + WARM_UP_S
    ends = np.arange(every_s, row.load_s, every_s).tolist() if every_s else []
    before_s = 0.0
    for at_s in [*ends, row.load_s]:
        for metric in row.values:
            walk[metric] += rng.normal(0.0, math.sqrt((at_s - before_s) / row.load_s))
        before_s = at_s
        share = at_s / row.load_s
        values: dict[str, float] = {}
        intervals: dict[str, tuple[float, float]] = {}
        for metric, truth in row.values.items():
            slow = -luck if "_ms" not in metric else luck
            error = within(metric)
            values[metric] = truth * math.exp(slow + own[metric] + error * walk[metric] / share)
            width = _Z * error / math.sqrt(share)
            intervals[metric] = values[metric] * math.exp(-width), values[metric] * math.exp(width)
        yield Look(at_s=begin_s + at_s, measurement=_measurement(case, row, at_s, share, values, intervals))


def _measurement(
    case: Case,
    row: Row,
    at_s: float,
    share: float,
    values: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
) -> Measurement:
    return Measurement(
        rung=case.problem.workload.reference.name,
        complete=share >= 1.0,
        duration_s=at_s,
        requests=row.requests,
        finished=int(row.requests * share),
        failed=0,
        gpus=row.gpus,
        intervals=intervals,
        **values,  # type: ignore[arg-type]
    )
