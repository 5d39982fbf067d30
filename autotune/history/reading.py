"""Reading a run back, also while it is being written."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from autotune.errors import UserError
from autotune.history.parts import parts
from autotune.history.record import TrialRecord
from autotune.history.rundir import RunDir
from autotune.history.schema import FACTS, REQUESTS, RUNGS, TRIALS
from autotune.history.tables import MEASURED_FIELDS
from autotune.spec.config import EngineConfig
from autotune.spec.measurement import METRICS, Measurement, StartFacts
from autotune.spec.verdict import Books, Bound, Broken, Dominated, Infeasible, Invalid, Measured, Verdict

_NULLABLE = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
"""Whole numbers stay whole in a frame although some are missing."""


def read_trials(run: RunDir) -> list[TrialRecord]:
    """One record per (trial, attempt), sorted; the latest row where one was written twice."""
    measurements: dict[tuple[int, int], dict[int, Measurement]] = {}
    for row in _rows(run, "rungs", RUNGS):
        measurements.setdefault((row["trial"], row["attempt"]), {})[row["position"]] = _measurement(row, row["rung"])
    latest = {(row["trial"], row["attempt"]): row for row in _rows(run, "trials", TRIALS)}
    return [
        _record(row, tuple(m for _, m in sorted(measurements.get(key, {}).items())))
        for key, row in sorted(latest.items())
    ]


def trials_frame(run: RunDir) -> pd.DataFrame:
    """As `trials.parquet` has it, the latest row per (trial, attempt), sorted."""
    return _frame(run, "trials", TRIALS, ["trial", "attempt"])


def rungs_frame(run: RunDir) -> pd.DataFrame:
    return _frame(run, "rungs", RUNGS, ["trial", "attempt", "position"])


def requests_frame(run: RunDir) -> pd.DataFrame:
    return _frame(run, "requests", REQUESTS, ["trial", "attempt", "rung", "index"])


def _read(run: RunDir, name: str, schema: pa.Schema) -> pa.Table:
    """Oldest row first. Read with this version's schema: columns that an older file lacks come as null."""
    files = parts(run.table(name))
    if not files:
        return schema.empty_table()
    try:
        return pq.read_table(files, schema=schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(
            f"can't be read: {error}", file=run.table(name), remedy="move the damaged file away; its rows are lost"
        ) from error


def _rows(run: RunDir, name: str, schema: pa.Schema) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _read(run, name, schema).to_pylist()
    return rows


def _frame(run: RunDir, name: str, schema: pa.Schema, key: list[str]) -> pd.DataFrame:
    frame: pd.DataFrame = _read(run, name, schema).to_pandas(types_mapper=_NULLABLE.get)
    return frame.drop_duplicates(key, keep="last").sort_values(key, kind="stable", ignore_index=True)


def _record(row: dict[str, Any], measurements: tuple[Measurement, ...]) -> TrialRecord:
    return TrialRecord(
        trial=row["trial"],
        attempt=row["attempt"],
        role=row["role"],
        verdict=_verdict(row),
        config=_config(row["config"]),
        point=json.loads(row["point"]),
        seed=row["seed"],
        workload=row["workload"],
        measurements=measurements,
        facts=StartFacts(**{column.name: row[column.name] for column in FACTS}),
        books=Books(
            start_s=row["start_seconds"],
            warm_up_s=row["warm_up_seconds"],
            load_s=row["load_seconds"],
            stop_s=row["stop_seconds"],
            dead_s=row["dead_seconds"],
        ),
        gpus=row["gpus"],
        devices=tuple(row["devices"]),
        node=row["node"],
        argv=tuple(json.loads(row["argv"])),
        engine_reused=row["engine_reused"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        versions=json.loads(row["versions"]),
        launched=_config(row["launched"]) if row["launched"] else None,
    )


def _config(text: str) -> EngineConfig:
    form = json.loads(text)
    return EngineConfig(model=form["model"], flags=form["flags"], env=form["env"])


def _verdict(row: dict[str, Any]) -> Verdict:
    match row["verdict"]:
        case "measured":
            return Measured(measurement=_measurement(row, row["reference_rung"]))
        case "dominated":
            return Dominated(by=tuple(row["dominated_by"]), measurement=_measurement(row, row["reference_rung"]))
        case "infeasible":
            rung = row["reference_rung"]
            bounds = tuple(Bound.read(form) for form in json.loads(row["bounds"] or "[]"))
            return Infeasible(
                cause=row["cause"],
                evidence=row["evidence"],
                shortfall=row["shortfall"],
                bounds=bounds,
                measurement=None if rung is None else _measurement(row, rung),
            )
        case "invalid":
            return Invalid(reasons=tuple(row["reasons"]))
        case "broken":
            return Broken(error=row["error"], cause=row["cause"])
        case other:
            raise UserError("no verdict of this version of vtune", key="verdict", value=other, remedy="update vtune")


def _measurement(row: dict[str, Any], rung: str) -> Measurement:
    intervals = {
        metric: (row[f"{metric}_low"], row[f"{metric}_high"]) for metric in METRICS if row[f"{metric}_low"] is not None
    }
    return Measurement(
        rung=rung, gpus=row["gpus"], intervals=intervals, **{name: row[name] for name in MEASURED_FIELDS}
    )
