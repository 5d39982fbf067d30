"""Appending to a run's tables. Each call adds one Parquet file and returns once it is on disk.

Write requests and rungs before the trial, and the trial before the study is told: then whatever the study knows, the
history can show, and a row of `trials` never lacks its rungs.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, assert_never

import numpy as np
import pyarrow as pa

from autotune.history.parts import to_bytes, write_part
from autotune.history.record import TrialRecord
from autotune.history.rundir import RunDir
from autotune.history.schema import ENVIRONMENT, REQUESTS, RUNGS, TRIALS
from autotune.spec.config import EngineConfig
from autotune.spec.measurement import METRICS, Measurement, RequestRecord
from autotune.spec.verdict import Broken, Dominated, Infeasible, Invalid, Measured, Verdict, verdict_name

__all__ = [
    "append_environment",
    "append_requests",
    "append_rungs",
    "append_trial",
    "requests_table",
    "to_bytes",
]

MEASURED_FIELDS: tuple[str, ...] = (
    *(f.name for f in fields(Measurement) if f.name not in {"rung", "gpus", "intervals"}),
)
"""Fields of a measurement whose column has the same name in every table."""


def append_trial(run: RunDir, record: TrialRecord) -> None:
    _append(run, "trials", _table([trial_row(record)], TRIALS))


def append_rungs(run: RunDir, record: TrialRecord) -> None:
    """One row per rung that was run; nothing for a trial without any."""
    if not record.measurements:
        return
    rows = [
        {
            "trial": record.trial,
            "attempt": record.attempt,
            "position": position,
            "rung": measurement.rung,
            "gpus": measurement.gpus,
            **_measurement_row(measurement),
        }
        for position, measurement in enumerate(record.measurements)
    ]
    _append(run, "rungs", _table(rows, RUNGS))


def requests_table(trial: int, attempt: int, rung: str, records: Sequence[RequestRecord]) -> pa.Table:
    """One row per request, in the order given. Holds the token gaps without a Python object per token."""
    size = len(records)
    gaps = [np.frombuffer(record.token_gaps_us, dtype="<u4") for record in records]
    offsets = np.concatenate([[0], np.cumsum([len(gap) for gap in gaps], dtype=np.int64)]).astype(np.int32)
    values = np.concatenate([*gaps, np.empty(0, dtype=np.uint32)]).astype(np.uint32)
    columns: dict[str, Any] = {
        "trial": pa.array([trial] * size, pa.int64()),
        "attempt": pa.array([attempt] * size, pa.int64()),
        "rung": pa.array([rung] * size, pa.string()),
        "index": pa.array(range(size), pa.int64()),
        "token_gaps_us": pa.ListArray.from_arrays(pa.array(offsets), pa.array(values)),
    }
    for column in REQUESTS:
        if column.name not in columns:
            columns[column.name] = pa.array([_known(getattr(r, column.name)) for r in records], column.type)
    return pa.table([columns[name] for name in REQUESTS.names], schema=REQUESTS)


def append_requests(run: RunDir, table: pa.Table | bytes) -> None:
    """`table` as `requests_table` makes it, or `to_bytes` of one."""
    write_part(run.table("requests"), table if isinstance(table, bytes) else to_bytes(table))


def append_environment(run: RunDir, readings: Mapping[str, object], *, node: str | None = None) -> None:
    """One row per reading; values are anything that JSON can hold."""
    now = time.time()
    rows = [{"recorded_at": now, "node": node, "key": key, "value": _json(value)} for key, value in readings.items()]
    _append(run, "environment", _table(rows, ENVIRONMENT))


def trial_row(record: TrialRecord) -> dict[str, Any]:
    """Column name -> value of `trials`; columns that don't apply are left out."""
    measurement = record.measurement
    row: dict[str, Any] = {
        name: getattr(record, name)
        for name in ("trial", "attempt", "role", "seed", "workload", "gpus", "node", "engine_reused")
    }
    row |= {
        "verdict": verdict_name(record.verdict),
        "flags": _json(dict(record.config.flags)),
        "config": _config(record.config),
        "point": _json(dict(record.point)),
        "argv": _json(list(record.argv)),
        "launched": None if record.launched is None else _config(record.launched),
        "versions": _json(dict(record.versions)),
        "devices": list(record.devices),
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "gpu_seconds": record.gpu_s,
        **{f"{name.removesuffix('_s')}_seconds": value for name, value in asdict(record.books).items()},
        **asdict(record.facts),
        **_verdict_row(record.verdict),
    }
    if measurement is not None:
        row |= {"reference_rung": measurement.rung, **_measurement_row(measurement)}
    return row


def _config(config: EngineConfig) -> str:
    return _json({"model": config.model, "flags": dict(config.flags), "env": dict(config.env)})


def _verdict_row(verdict: Verdict) -> dict[str, Any]:
    match verdict:
        case Measured():
            return {}
        case Infeasible(cause=cause, evidence=evidence, shortfall=shortfall, bounds=bounds):
            implied = json.dumps([bound.form() for bound in bounds]) if bounds else None
            return {"cause": cause, "evidence": evidence, "shortfall": shortfall, "bounds": implied}
        case Dominated(by=by):
            return {"dominated_by": list(by)}
        case Invalid(reasons=reasons):
            return {"reasons": list(reasons)}
        case Broken(error=error, cause=cause):
            return {"error": error, "cause": cause}
        case _:
            assert_never(verdict)


def _measurement_row(measurement: Measurement) -> dict[str, Any]:
    row = {name: getattr(measurement, name) for name in MEASURED_FIELDS}
    for metric, (low, high) in measurement.intervals.items():
        assert metric in METRICS, f"an interval of {metric}, which is no metric"
        row |= {f"{metric}_low": low, f"{metric}_high": high}
    return row


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Raises KeyError for a value without a column: Arrow would drop it silently."""
    unknown = {name for row in rows for name in row} - set(schema.names)
    if unknown:
        raise KeyError(f"no column for {sorted(unknown)}")
    return pa.Table.from_pylist([{name: _known(row.get(name)) for name in schema.names} for row in rows], schema=schema)


def _append(run: RunDir, name: str, table: pa.Table) -> None:
    write_part(run.table(name), to_bytes(table))


def _known(value: Any) -> Any:
    """What the tables can hold: null for NaN, which says "not known"; a mark for bytes of a log that aren't text."""
    match value:
        case float() if math.isnan(value):
            return None
        case str():
            return value.encode(errors="replace").decode()
        case list():
            return [_known(item) for item in value]
        case _:
            return value


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
