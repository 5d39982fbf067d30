"""Devices x wall seconds, each of them start, warm-up, load, idle or dead."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import OBJECTIVES, measured, record, under_stress, write_run

from autotune.history.record import TrialRecord
from autotune.history.rundir import RunDir, RunHeader
from autotune.report.form import study_form
from autotune.report.gpu_books import GpuBooks, gpu_books
from autotune.report.markdown import markdown
from autotune.report.study import read_study
from autotune.report.summary import summarise
from autotune.spec.objective import Budget
from autotune.spec.verdict import Books, Broken, Dominated, Infeasible, Invalid, Measured, Verdict

DEFAULT = measured(0, 1000.0, 50.0, role="default")
"""2 s of start, 1 of warm-up, 10 of load, 0.5 of stop: 13.5 s from its beginning to its end."""
MEASUREMENT = DEFAULT.measurement
assert MEASUREMENT is not None


def header(**changes: object) -> RunHeader:
    values: dict[str, object] = {
        "name": "run",
        "seed": 1,
        "command": (),
        "space_text": "",
        "workload_text": "",
        "objectives": OBJECTIVES,
        "slos": (),
        "budget": Budget(),
        "started_at": 1_000.0,
        "elapsed_s": 100.0,
    }
    return RunHeader(**(values | changes))  # type: ignore[arg-type]


def books_of(*records: TrialRecord, devices: int = 1, wall_s: float = 100.0) -> GpuBooks:
    return gpu_books(records, header(devices=devices, elapsed_s=wall_s, offered_gpu_s=devices * wall_s))


def test_what_no_trial_booked_is_idle() -> None:
    assert dict(books_of(DEFAULT).split) == {"start": 2.0, "warm_up": 1.0, "load": 10.0, "idle": 87.0, "dead": 0.0}


def test_a_device_beside_the_trial_is_idle() -> None:
    assert books_of(DEFAULT, devices=2).idle_gpu_s == pytest.approx(200.0 - 13.0)


def test_an_engine_of_two_gpus_takes_two_gpu_seconds_a_second() -> None:
    wide = measured(1, 1000.0, 50.0, {"tensor-parallel-size": 2})
    books = books_of(wide, devices=2)
    assert (books.start_gpu_s, books.warm_up_gpu_s, books.load_gpu_s, books.idle_gpu_s) == (4.0, 2.0, 20.0, 174.0)


def test_what_a_trial_did_without_booking_it_is_idle() -> None:
    slow = replace(DEFAULT, ended_at=DEFAULT.started_at + 60.0)
    assert books_of(slow) == books_of(DEFAULT)


@pytest.mark.parametrize(
    "verdict",
    [
        Broken(error="lost"),
        Invalid(reasons=("too few requests",)),
        Infeasible(cause="oom.runtime", evidence="CUDA out of memory"),
    ],
)
def test_an_attempt_without_a_measurement_is_dead_from_its_beginning_to_its_end(verdict: Verdict) -> None:
    lost = record(1, verdict, {"a": 1})
    lost = replace(lost, ended_at=lost.started_at + 20.0)
    assert dict(books_of(lost).split) == {"start": 0.0, "warm_up": 0.0, "load": 0.0, "idle": 80.0, "dead": 20.0}


def test_a_failed_start_is_dead() -> None:
    failed = replace(record(1, Infeasible(cause="oom", evidence="e"), {"a": 1}), books=Books(dead_s=13.5))
    assert books_of(failed).dead_gpu_s == pytest.approx(13.5)


@pytest.mark.parametrize(
    "kept",
    [
        record(1, Dominated(by=(0,), measurement=MEASUREMENT), {"a": 1}),
        under_stress(measured(1, 1000.0, 50.0, {"a": 1}), died_of="oom.runtime"),
    ],
)
def test_a_trial_that_was_measured_before_it_was_stopped_or_died_is_not_dead(kept: TrialRecord) -> None:
    assert (books_of(kept).dead_gpu_s, books_of(kept).load_gpu_s) == (0.0, 10.0)


def test_every_attempt_counts() -> None:
    again = [record(0, Broken(error="lost"), role="default"), replace(DEFAULT, attempt=2, started_at=1_020.0)]
    assert (books_of(*again).dead_gpu_s, books_of(*again).load_gpu_s) == (13.5, 10.0)


# ---------------------------------------------------------------- they add up


seconds = st.floats(min_value=0.0, max_value=1e4)
verdicts: st.SearchStrategy[Verdict] = st.sampled_from(
    [
        Measured(measurement=MEASUREMENT),
        Dominated(by=(0,), measurement=MEASUREMENT),
        Infeasible(cause="oom", evidence="e"),
        Infeasible(cause="oom.runtime", evidence="e", measurement=MEASUREMENT),
        Invalid(reasons=("x",)),
        Broken(error="x"),
    ]
)


@st.composite
def searches(draw: st.DrawFn) -> tuple[list[TrialRecord], int, float]:
    """(trials, devices, wall seconds): rounds of trials side by side, as many as have devices, and waits between."""
    devices, now, found = draw(st.integers(1, 8)), 0.0, list[TrialRecord]()
    for _ in range(draw(st.integers(0, 5))):
        free, ends = devices, [now]
        while free and draw(st.booleans()):
            gpus = draw(st.integers(1, free))
            free -= gpus
            books = Books(**{f"{name}_s": draw(seconds) for name in ("start", "warm_up", "load", "stop", "dead")})
            began = now + draw(seconds)
            ends.append(began + books.total_s + draw(seconds))
            one = replace(DEFAULT, trial=len(found), verdict=draw(verdicts), books=books, gpus=gpus)
            found.append(replace(one, started_at=began, ended_at=ends[-1]))
        now = max(ends)
    return found, devices, now + draw(seconds)


@given(searches())
def test_no_part_is_negative_and_they_add_up_to_devices_times_wall_seconds(
    search: tuple[list[TrialRecord], int, float],
) -> None:
    records, devices, wall_s = search
    books = books_of(*records, devices=devices, wall_s=wall_s)
    parts = [gpu_s for gpu_s in books.split.values() if gpu_s is not None]
    assert len(parts) == 5 and min(parts) >= 0
    assert books.total_gpu_s == math.fsum(parts)
    assert books.total_gpu_s == pytest.approx(devices * wall_s, rel=1e-9, abs=1e-6)


@given(searches(), st.floats(min_value=0.0, max_value=1e5))
def test_where_trials_booked_more_than_there_was_idle_is_unknown_and_never_negative(
    search: tuple[list[TrialRecord], int, float], wall_s: float
) -> None:
    records, devices, _ = search
    books = books_of(*records, devices=devices, wall_s=wall_s)
    booked = books.start_gpu_s + books.warm_up_gpu_s + books.load_gpu_s + books.dead_gpu_s
    if booked > devices * wall_s + 1:
        assert books.idle_gpu_s is None and books.total_gpu_s is None and books.share("load") is None
    elif booked < devices * wall_s - 1:
        assert books.idle_gpu_s == pytest.approx(devices * wall_s - booked)


# ---------------------------------------------------------------- how many devices there were


def test_sessions_with_different_devices_offer_what_each_had() -> None:
    """60 s with one device, then 40 s with four."""
    books = gpu_books([DEFAULT], header(devices=4, offered_gpu_s=60.0 + 4 * 40.0))
    assert (books.devices, books.total_gpu_s, books.wall_s) == (4, 220.0, 100.0)


def test_an_older_run_on_one_machines_gpus_is_known_by_its_options() -> None:
    books = gpu_books([DEFAULT], header(options={"devices": 2}))
    assert (books.devices, books.idle_gpu_s) == (2, 187.0)


@pytest.mark.parametrize(
    "unknown",
    [
        {"options": {"devices": None}},  # an older version's run on a cluster or a CPU
        {"options": {"devices": 1}, "devices": 1},  # one that a newer version went on with, but not knowing
        {"options": {"simulate": True}, "devices": 1, "offered_gpu_s": 100.0},
    ],
)
def test_what_can_not_be_known_is_missing_and_not_0(unknown: dict[str, object]) -> None:
    books = gpu_books([DEFAULT], header(**unknown))
    assert (books.idle_gpu_s, books.total_gpu_s, books.share("start"), books.load_gpu_s) == (None, None, None, 10.0)


# ---------------------------------------------------------------- as it is shown


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two devices for 100 s: a start of 2 s, one of 4 s, an engine used again, and a failed start."""
    slower = replace(measured(1, 1500.0, 80.0, {"a": 1}), books=Books(start_s=4.0, load_s=10.0))
    reused = replace(measured(2, 1600.0, 80.0, {"a": 2}), books=Books(load_s=10.0), engine_reused=True)
    failed = replace(record(3, Infeasible(cause="oom", evidence="e"), {"a": 3}), books=Books(dead_s=13.5))
    path = write_run(tmp_path / "run", [DEFAULT, slower, reused, failed])
    RunDir(path).update(devices=2, elapsed_s=100.0, offered_gpu_s=200.0)
    return path


def test_the_answer_has_the_split_in_gpu_seconds_and_shares(run: Path) -> None:
    found = study_form(read_study(run))["gpu_s"]
    assert (found["devices"], found["wall_s"], found["offered"]) == (2, 100.0, 200.0)
    assert found["split"] == {"start": 6.0, "warm_up": 1.0, "load": 30.0, "idle": 149.5, "dead": 13.5}
    assert found["shares"] == pytest.approx(
        {"start": 0.03, "warm_up": 0.005, "load": 0.15, "idle": 0.7475, "dead": 0.0675}
    )


def test_the_mean_start_is_of_engines_that_were_started_and_served(run: Path) -> None:
    found = study_form(read_study(run))["gpu_s"]
    assert (found["engine_starts"], found["engines_reused"], found["mean_start_s"]) == (3, 1, 3.0)


def test_where_no_engine_started_there_is_no_mean_start() -> None:
    failed = replace(record(0, Infeasible(cause="oom", evidence="e"), role="default"), books=Books(dead_s=5.0))
    assert summarise([failed], OBJECTIVES).spending.mean_start_s is None


@pytest.mark.parametrize(
    "line",
    [
        "200 GPU-seconds on 2 devices in 1 min 40 s. 3 engine starts, 3 s on average; 1 trial reused a running engine.",
        "| warm-up | 1 | 0.5 % |",
        "| idle | 149.5 | 74.8 % |",
        "| dead | 13.50 | 6.8 % |",
        "The budget counts what trials booked: 51 GPU-seconds (37.50 measured, 13.50 infeasible).",
    ],
)
def test_the_report_shows_the_split(run: Path, line: str) -> None:
    assert line in markdown(read_study(run)).splitlines()


def test_the_report_calls_an_older_runs_idle_time_unknown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [DEFAULT])
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(
        json.dumps({k: v for k, v in content.items() if k not in ("devices", "offered_gpu_s")})
    )
    RunDir(run).update(elapsed_s=600.0)
    page = markdown(read_study(run))
    assert "unknown GPU-seconds on an unknown number of devices in 10 min." in page
    assert "| start | 2 | - |" in page and "| idle | unknown | - |" in page
