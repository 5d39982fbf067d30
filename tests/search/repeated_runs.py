"""Records of runs that nobody ran, for tests of what is measured again and what is concluded."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.history.record import Role, TrialRecord
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.measurement import Measurement, StartFacts
from autotune.spec.objective import Objective, Slo
from autotune.spec.verdict import Books, Measured

THROUGHPUT = Objective(metric="output_tok_per_s_per_gpu", direction="maximize")
LATENCY = Objective(metric="ttft_p99_ms", direction="minimize")
OBJECTIVES = (THROUGHPUT, LATENCY)
LIMIT = Slo(metric="ttft_p99_ms", limit=100.0)


def config(flags: Mapping[str, FlagValue]) -> EngineConfig:
    return EngineConfig(model="m", flags=dict(flags))


def run(
    trial: int,
    role: Role,
    flags: Mapping[str, FlagValue],
    tok_per_s: float,
    ttft_ms: float = 50.0,
    *,
    failed: int = 0,
) -> TrialRecord:
    measured = Measurement(
        rung="steady",
        complete=True,
        duration_s=10.0,
        requests=100,
        finished=100 - failed,
        failed=failed,
        gpus=1,
        output_tok_per_s_per_gpu=tok_per_s,
        ttft_p99_ms=ttft_ms,
    )
    return TrialRecord(
        trial=trial,
        attempt=1,
        role=role,
        verdict=Measured(measurement=measured),
        config=config(flags),
        point=dict(flags),
        seed=1,
        workload="w",
        measurements=(measured,),
        facts=StartFacts(),
        books=Books(load_s=6.0),
        gpus=1,
        devices=("0",),
        node="here",
        argv=(),
        engine_reused=False,
        started_at=1000.0 + 7 * trial,
        ended_at=1006.0 + 7 * trial,
    )
