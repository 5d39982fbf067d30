"""An open loop above capacity: requests wait in a queue that grows for as long as the load lasts.

Fed at a rate a and served at a rate b < a, a request that is due at t begins after t x (a / b - 1). Only a TTFT that
counts from the due time, by a client that sends on schedule whatever the answers do, shows that.
"""

from __future__ import annotations

import numpy as np
import pytest

from autotune.engine.simulated import SimulatedLauncher
from autotune.load.simulated import SimulatedLoader
from autotune.load.statistics import measure
from autotune.spec.config import EngineConfig
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import RequestRecord
from autotune.spec.workload import Arrivals, FixedLength, Poisson, RequestShape, Rung, UniformLength, Workload

WORKLOAD = Workload(
    name="w",
    shapes=(RequestShape(prompt=FixedLength(tokens=100), output=UniformLength(low=32, high=96)),),
    rungs=(),
    reference_rungs=(),
)


def records_of(arrivals: Arrivals, requests: int) -> list[RequestRecord]:
    rung = Rung(name="r", arrivals=arrivals, requests=requests)
    config = EngineConfig(model="m", flags={"max-num-seqs": 16})
    with SimulatedLauncher()(config, ("0",), name="t", cancelled=lambda: False) as endpoint:
        assert isinstance(endpoint, Endpoint)
        blocks = SimulatedLoader(noise=0.0)(endpoint, WORKLOAD, rung, seed=3)
        return [record for block in blocks for record in block.records]


def served_rps() -> float:
    """With a queue that never empties."""
    records = records_of(Poisson(rate_rps=1000.0), 800)
    done_s = sorted(record.done_s or 0.0 for record in records)
    return (len(done_s) - 200) / (done_s[-1] - done_s[199])


@pytest.mark.parametrize("excess", [1.3, 2.0, 4.0])
def test_above_capacity_ttft_grows_by_the_excess_of_arrivals(excess: float) -> None:
    records = records_of(Poisson(rate_rps=excess * served_rps()), 1500)
    due_s = np.array([r.scheduled_s for r in records])
    ttft_s = np.array([(r.first_token_s or 0.0) - r.scheduled_s for r in records])
    offered_rps = len(due_s) / due_s.max()
    slope = float(np.polyfit(due_s, ttft_s, 1)[0])
    assert slope == pytest.approx(offered_rps / served_rps() - 1, rel=0.1)


def test_below_capacity_ttft_does_not_grow() -> None:
    records = records_of(Poisson(rate_rps=0.7 * served_rps()), 1500)
    due_s = np.array([r.scheduled_s for r in records])
    ttft_s = np.array([(r.first_token_s or 0.0) - r.scheduled_s for r in records])
    assert abs(float(np.polyfit(due_s, ttft_s, 1)[0])) < 0.002


def test_a_queue_is_in_the_measured_ttft_but_not_in_that_of_a_closed_loop() -> None:
    rate_rps = 2 * served_rps()
    rung = Rung(name="r", arrivals=Poisson(rate_rps=rate_rps), requests=1000)
    records = records_of(rung.arrivals, rung.requests)
    shown = measure(
        rung,
        records,
        elapsed_s=max(r.done_s or 0.0 for r in records),
        sending_until_s=max(r.scheduled_s for r in records),
        gpus=1,
        slos=(),
        samples=(),
        complete=True,
    )
    assert shown.ttft_p50_ms is not None
    assert shown.ttft_p50_ms / 1e3 == pytest.approx(0.5 * 1000 / rate_rps, rel=0.15)
