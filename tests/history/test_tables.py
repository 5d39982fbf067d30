from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from history_records import a_trial, trial_records
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rundir import header

from autotune.history.parts import to_bytes
from autotune.history.reading import read_trials, requests_frame, rungs_frame, trials_frame
from autotune.history.record import TrialRecord
from autotune.history.rundir import RunDir
from autotune.history.schema import SCHEMA_VERSION, TABLES
from autotune.history.tables import append_environment, append_requests, append_rungs, append_trial, requests_table
from autotune.spec.measurement import RequestRecord
from autotune.spec.verdict import Broken, Infeasible, Invalid


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, header())


def write(run: RunDir, records: Sequence[TrialRecord]) -> None:
    for record in records:
        append_rungs(run, record)
        append_trial(run, record)


def sql(query: str, folder: Path) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = duckdb.sql(
        query.replace("FOLDER", f"read_parquet('{folder}/*.parquet')")
    ).fetchall()
    return rows


@pytest.mark.timeout(60)
@settings(max_examples=60, deadline=None)
@given(st.lists(trial_records(), max_size=3, unique_by=lambda record: (record.trial, record.attempt)))
def test_records_read_back_equal_those_written_whatever_the_verdict(records: list[TrialRecord]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir.create(Path(folder), header())
        write(run, records)
        assert read_trials(run) == sorted(records, key=lambda record: (record.trial, record.attempt))


def test_a_run_without_trials_reads_as_empty(run: RunDir) -> None:
    assert read_trials(run) == []
    assert list(trials_frame(run).columns) == list(pd.read_parquet(run.table("trials")).columns)


def test_the_latest_row_of_an_attempt_counts(run: RunDir) -> None:
    write(run, [a_trial(1, verdict=Broken(error="first")), a_trial(0), a_trial(1)])
    assert read_trials(run) == [a_trial(0), a_trial(1)]
    assert list(trials_frame(run)["verdict"]) == ["measured", "measured"]


def test_every_attempt_of_a_trial_is_kept(run: RunDir) -> None:
    attempts = [a_trial(4, 1, verdict=Broken(error="node lost")), a_trial(4, 2)]
    write(run, attempts)
    assert read_trials(run) == attempts


def test_empty_dicts_mixed_types_and_late_columns_are_written_as_declared(run: RunDir) -> None:
    """Arrow infers none of these: an empty dict, int beside "auto", a column that the first row lacks (arrow#9886)."""
    write(
        run,
        [
            a_trial(1, max_model_len=8192),
            a_trial(2, max_model_len="auto", verdict=Infeasible(cause="oom.graph_capture", evidence="OutOfMemory")),
            a_trial(3, max_model_len=4096, enable_prefix_caching=True, verdict=Broken(error="actor died")),
            a_trial(4),
        ],
    )
    frame = pd.read_parquet(run.table("trials"))
    assert [json.loads(flags).get("max-model-len") for flags in frame["flags"]] == [8192, "auto", 4096, None]
    assert sql("select trial, cause, error from FOLDER order by trial", run.table("trials")) == [
        (1, None, None),
        (2, "oom.graph_capture", None),
        (3, "harness", "actor died"),
        (4, None, None),
    ]


def test_what_was_not_measured_is_null_and_not_zero_or_nan(run: RunDir) -> None:
    write(run, [a_trial(0, verdict=Invalid(reasons=("too few requests",)))])
    assert sql("select ttft_p99_ms, preemptions, shortfall, weights_gib from FOLDER", run.table("trials")) == [
        (None, None, None, None)
    ]


def test_nan_becomes_null(run: RunDir) -> None:
    write(run, [a_trial(0, verdict=Infeasible(cause="unknown", evidence="?", shortfall=float("nan")))])
    assert sql("select shortfall is null from FOLDER", run.table("trials")) == [(True,)]


def test_bytes_of_a_log_that_are_no_text_do_not_lose_the_trial(run: RunDir) -> None:
    write(run, [a_trial(0, verdict=Invalid(reasons=("log says \udcff",)))])
    assert read_trials(run)[0].verdict == Invalid(reasons=("log says ?",))


def test_whole_numbers_stay_whole_in_a_frame_with_gaps(run: RunDir) -> None:
    write(run, [a_trial(0), a_trial(1, verdict=Broken(error="x"))])
    assert list(trials_frame(run)["requests"].isna()) == [False, True]
    assert str(trials_frame(run)["requests"].dtype) == "Int64"


def test_gpu_seconds_are_devices_times_every_booked_second(run: RunDir) -> None:
    write(run, [a_trial(0)])
    query = (
        "select gpu_seconds, gpus * (start_seconds + warm_up_seconds + load_seconds + stop_seconds + dead_seconds) "
        "from FOLDER"
    )
    assert sql(query, run.table("trials")) == [(12.0, 12.0)]


def test_each_rung_has_its_interval_beside_its_value(run: RunDir) -> None:
    write(run, [a_trial(0)])
    row = rungs_frame(run).iloc[0]
    assert (row["rung"], row["ttft_p99_ms"], row["ttft_p99_ms_low"], row["ttft_p99_ms_high"]) == (
        "steady",
        120.5,
        110.0,
        131.0,
    )


def request(done_s: float | None, gaps: Sequence[int] = (), error: str | None = None) -> RequestRecord:
    return RequestRecord(
        scheduled_s=0.5,
        sent_s=0.6,
        first_token_s=None if error else 0.7,
        done_s=done_s,
        prompt_tokens=12,
        output_tokens=None if error else len(gaps) + 1,
        error=error,
        token_gaps_us=np.array(gaps, dtype="<u4").tobytes(),
    )


def test_requests_keep_every_token_gap_and_every_error(run: RunDir) -> None:
    append_requests(
        run, requests_table(0, 1, "steady", [request(2.0, [900, 4_000_000_000]), request(None, error="503")])
    )
    frame = requests_frame(run)
    assert [list(gaps) for gaps in frame["token_gaps_us"]] == [[900, 4_000_000_000], []]
    assert list(frame["error"].dropna()) == ["503"]
    assert sql("select count(*), count(done_s), count(output_tokens) from FOLDER", run.table("requests")) == [(2, 1, 1)]


def test_a_rung_without_requests_is_an_empty_table(run: RunDir) -> None:
    append_requests(run, to_bytes(requests_table(0, 1, "steady", [])))
    assert len(requests_frame(run)) == 0


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=5), max_size=5))
@settings(max_examples=30, deadline=None)
def test_token_gaps_survive_the_table(gaps: list[list[int]]) -> None:
    table = requests_table(0, 1, "r", [request(1.0, g) for g in gaps])
    assert table.column("token_gaps_us").to_pylist() == gaps


def test_environment_readings_are_json(run: RunDir) -> None:
    append_environment(run, {"driver": "580.1", "gpus": [{"name": "H200"}], "empty": {}}, node="a")
    frame = pd.read_parquet(run.table("environment"))
    assert {key: json.loads(value) for key, value in zip(frame["key"], frame["value"], strict=True)} == {
        "driver": "580.1",
        "gpus": [{"name": "H200"}],
        "empty": {},
    }


@pytest.mark.parametrize("name", sorted(TABLES))
def test_files_say_their_schema_version_units_and_meanings(run: RunDir, name: str) -> None:
    file = next(run.table(name).glob("*.parquet"))
    schema = pq.read_schema(file)
    assert schema.metadata[b"schema_version"] == str(SCHEMA_VERSION).encode()
    assert all(field.metadata[b"meaning"] for field in schema)
    assert schema.equals(TABLES[name], check_metadata=False)


def test_a_column_that_an_older_file_lacks_reads_as_null(run: RunDir) -> None:
    append_trial(run, a_trial(0))
    file = max(run.table("trials").glob("part-*.parquet"))
    pq.write_table(pq.read_table(file).drop_columns(["engine_init_s"]), file)
    assert read_trials(run)[0].facts.engine_init_s is None
