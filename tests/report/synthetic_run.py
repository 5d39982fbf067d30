"""Records and run folders made up for tests of what is shown; no engine was asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from autotune.history.record import Role, TrialRecord
from autotune.history.rundir import RunDir, RunHeader, State
from autotune.history.tables import append_rungs, append_trial
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.measurement import Measurement, StartFacts
from autotune.spec.objective import Budget, Objective, Slo
from autotune.spec.verdict import Books, Infeasible, Measured, Verdict
from autotune.spec.workload import STRESS

THROUGHPUT = Objective(metric="output_tok_per_s_per_gpu", direction="maximize")
LATENCY = Objective(metric="ttft_p99_ms", direction="minimize")
OBJECTIVES = (THROUGHPUT, LATENCY)
TTFT_SLO = Slo(metric="ttft_p99_ms", limit=100.0)


def measurement(tok_per_s: float, ttft_ms: float, *, failed: int = 0) -> Measurement:
    return Measurement(
        rung="steady",
        complete=True,
        duration_s=10.0,
        requests=120,
        finished=120 - failed,
        failed=failed,
        gpus=1,
        output_tok_per_s_per_gpu=tok_per_s,
        ttft_p99_ms=ttft_ms,
    )


def record(
    trial: int,
    verdict: Verdict,
    flags: Mapping[str, FlagValue] | None = None,
    *,
    role: Role = "search",
    attempt: int = 1,
    env: Mapping[str, str] | None = None,
    model: str = "facebook/opt-125m",
    versions: Mapping[str, str] | None = None,
) -> TrialRecord:
    config = EngineConfig(model=model, flags={} if flags is None else flags, env=env or {})
    shown = getattr(verdict, "measurement", None)
    return TrialRecord(
        trial=trial,
        attempt=attempt,
        role=role,
        verdict=verdict,
        config=config,
        point={} if role == "default" else dict(config.flags),
        seed=1,
        workload="chat",
        measurements=(shown,) if shown else (),
        facts=StartFacts(),
        books=Books(start_s=2.0, warm_up_s=1.0, load_s=10.0, stop_s=0.5),
        gpus=config.gpus,
        devices=("0",),
        node="here",
        argv=("vllm",),
        engine_reused=False,
        started_at=1_000.0 + 20 * trial,
        ended_at=1_013.5 + 20 * trial,
        versions=versions or {},
    )


def measured(
    trial: int,
    tok_per_s: float,
    ttft_ms: float,
    flags: Mapping[str, FlagValue] | None = None,
    *,
    role: Role = "search",
    failed: int = 0,
) -> TrialRecord:
    return record(trial, Measured(measurement=measurement(tok_per_s, ttft_ms, failed=failed)), flags, role=role)


def under_stress(of: TrialRecord, *, lost: int = 0, died_of: str | None = None) -> TrialRecord:
    """`of` with a stress of 80 requests, 40 at once, after its rung. Where the engine died 10 were answered."""
    finished = 80 - lost if died_of is None else 10
    stress = Measurement(
        rung=STRESS,
        complete=died_of is None,
        duration_s=4.0,
        requests=80 if died_of is None else 50,
        finished=finished,
        failed=lost if died_of is None else 40,
        gpus=1,
        concurrency=40,
        kv_cache_usage_max=0.968,
        preemptions=3,
    )
    verdict = of.verdict
    if died_of is not None:
        verdict = Infeasible(cause=died_of, evidence="CUDA out of memory", measurement=of.measurement)
    return replace(of, verdict=verdict, measurements=(*of.measurements, stress))


def write_run(
    path: Path,
    records: Iterable[TrialRecord],
    *,
    slos: tuple[Slo, ...] = (),
    state: State = "done",
    name: str = "tiny-cpu",
    versions: Mapping[str, str] | None = None,
    command: tuple[str, ...] = ("vtune", "search", "--space", "tiny-cpu"),
    message: str = "",
) -> Path:
    header = RunHeader(
        name=name,
        seed=1,
        command=command,
        space_text="name: tiny-cpu\n",
        workload_text="name: chat\n",
        objectives=OBJECTIVES,
        slos=slos,
        budget=Budget(),
        started_at=1_000.0,
        finished_at=None if state == "running" else 1_600.0,
        versions=versions or {"vllm": "0.24.0"},
        state=state,
        message=message,
    )
    run = RunDir.create(path, header)
    for entry in records:
        append_rungs(run, entry)
        append_trial(run, entry)
    return path
