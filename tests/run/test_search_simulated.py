"""Real Ray Tune, real Optuna storage, simulated engines: how trials are packed, told and kept."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from simulated_problems import NO_FLAGS, Diary, new_run, options, problem

from autotune.history.reading import read_trials
from autotune.history.record import TrialRecord
from autotune.history.rundir import RunDir
from autotune.run.search import run_search
from autotune.spec.verdict import verdict_name

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

TRIALS = 24
RAY_SLACK_S = 8.0
"""For stopping idle actors of the other size and starting a new one, on a busy machine."""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, Diary]:
    """Two GPUs, engines of one and of two of them."""
    of = problem(trials=TRIALS, sizes=(1, 2))
    run, diary = new_run(tmp_path_factory.mktemp("mixed") / "run", of), Diary()
    assert run_search(of, options(gpus=2, time_scale=0.06), run=run, catalogue=NO_FLAGS, watch=diary) == "done"
    return run, diary


def test_every_trial_has_its_own_candidate_and_an_answer(mixed: tuple[RunDir, Diary]) -> None:
    records = read_trials(mixed[0])
    assert [record.trial for record in records] == list(range(TRIALS))
    assert len({record.config.key for record in records}) == TRIALS
    assert {verdict_name(record.verdict) for record in records} <= {"measured", "dominated", "infeasible"}


def test_the_first_trial_is_the_default_configuration(mixed: tuple[RunDir, Diary]) -> None:
    first = read_trials(mixed[0])[0]
    assert first.role == "default"
    assert dict(first.config.flags) == {}


def test_no_device_is_given_to_two_trials_at_once(mixed: tuple[RunDir, Diary]) -> None:
    records = read_trials(mixed[0])
    assert all(len(record.devices) == record.gpus for record in records)
    for one, other in itertools.combinations(records, 2):
        if set(one.devices) & set(other.devices):
            assert not overlap(one, other), (one.trial, other.trial)


def test_trials_of_one_gpu_run_side_by_side(mixed: tuple[RunDir, Diary]) -> None:
    small = [record for record in read_trials(mixed[0]) if record.gpus == 1]
    assert any(overlap(one, other) for one, other in itertools.combinations(small, 2))


def test_no_larger_candidate_waits_longer_than_the_trials_that_run(mixed: tuple[RunDir, Diary]) -> None:
    run, diary = mixed
    ended = {record.trial: record.ended_at for record in read_trials(run)}
    waits = [(at, progress) for at, progress in diary.entries if "waits for" in progress.event]
    assert waits, "engines of both sizes were tried, so one must have waited"
    for at, progress in waits:
        trial = progress.event.split()[1]
        started_at, _ = diary.event(f"trial {trial} starts")
        assert started_at - max([at, *(ended[live.trial] for live in progress.running)]) < RAY_SLACK_S


def test_actors_are_started_at_most_thirty_percent_as_often_as_trials(mixed: tuple[RunDir, Diary]) -> None:
    assert mixed[1].entries[-1][1].actors_started <= 0.3 * TRIALS


def test_the_searchs_own_rows_are_complete_and_on_disk(mixed: tuple[RunDir, Diary]) -> None:
    run, _ = mixed
    import pandas as pd

    trials, requests = pd.read_parquet(run.table("trials")), pd.read_parquet(run.table("requests"))
    measured = trials[trials.verdict == "measured"]
    assert len(trials) == TRIALS
    assert (measured.gpu_seconds > 0).all()
    assert (requests.groupby("trial").size().reindex(measured.trial) >= 100).all()


def test_a_finished_run_is_not_run_again(mixed: tuple[RunDir, Diary]) -> None:
    of = problem(trials=TRIALS, sizes=(1, 2))
    diary = Diary()
    assert run_search(of, options(gpus=2), run=mixed[0], catalogue=NO_FLAGS, watch=diary) == "done"
    assert not [p for _, p in diary.entries if "starts" in p.event]


def test_a_search_without_one_measurement_says_so(tmp_path: Path) -> None:
    from dataclasses import replace

    from autotune.errors import NoValidTrial

    of = problem(trials=3)
    of = replace(of, space=replace(of.space, fixed={"gpu-memory-utilization": 0.01}))
    with pytest.raises(NoValidTrial, match=r"no trial|in a row"):
        run_search(of, options(gpus=1), run=new_run(tmp_path / "run", of), catalogue=NO_FLAGS, watch=Diary())


def overlap(one: TrialRecord, other: TrialRecord) -> bool:
    return one.started_at < other.ended_at and other.started_at < one.ended_at
