"""Real Ray Tune, real Optuna storage, simulated engines: how trials are packed, told and kept."""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_problems import NO_FLAGS, Diary, new_run, options, problem

from autotune.history.reading import read_trials
from autotune.history.record import TrialRecord
from autotune.history.rundir import RunDir
from autotune.run.progress import Progress
from autotune.run.search import run_search
from autotune.search.conclusion import conclude
from autotune.spec.config import FlagValue
from autotune.spec.space import Choice
from autotune.spec.verdict import Infeasible, verdict_name

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

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
    candidates = [record for record in records if record.role in ("default", "search")]
    assert [record.trial for record in records] == list(range(len(records)))
    assert len({record.config.key for record in candidates}) == len(candidates) == TRIALS
    assert {verdict_name(record.verdict) for record in records} <= {"measured", "dominated", "infeasible"}


def test_the_default_is_repeated_through_the_search(mixed: tuple[RunDir, Diary]) -> None:
    records = read_trials(mixed[0])
    repeats = [record for record in records if record.role == "baseline"]
    assert len(repeats) >= 2
    assert {record.config.key for record in repeats} == {records[0].config.key}


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
    assert mixed[1].entries[-1][1].actors_started <= 0.3 * len(read_trials(mixed[0]))


def test_the_searchs_own_rows_are_complete_and_on_disk(mixed: tuple[RunDir, Diary]) -> None:
    run, _ = mixed
    import pandas as pd

    trials, requests = pd.read_parquet(run.table("trials")), pd.read_parquet(run.table("requests"))
    measured = trials[trials.verdict == "measured"]
    assert len(trials) >= TRIALS
    assert (measured.gpu_seconds > 0).all()
    assert (requests.groupby("trial").size().reindex(measured.trial) >= 100).all()


def test_the_header_tells_the_devices_and_their_gpu_seconds(mixed: tuple[RunDir, Diary]) -> None:
    header = mixed[0].header()
    assert header.devices == 2
    assert header.offered_gpu_s == pytest.approx(2 * header.elapsed_s, abs=0.01)
    assert header.elapsed_s > 1


def test_engines_outlive_their_trials(mixed: tuple[RunDir, Diary]) -> None:
    searched = [record for record in read_trials(mixed[0]) if record.role == "search"]
    reused = [record for record in searched if record.engine_reused]
    assert len(reused) >= 0.4 * len(searched)
    for record in reused:
        started_with = record.launched or record.config
        assert started_with.gpus == record.gpus
        assert started_with.flags["max-num-seqs"] == 128
    started = [record for record in searched if record.books.start_s > 0 and not record.engine_reused]
    assert max(record.books.start_s for record in reused) < 1 < min(record.books.start_s for record in started)


def test_a_finished_run_is_not_run_again(mixed: tuple[RunDir, Diary]) -> None:
    of = problem(trials=TRIALS, sizes=(1, 2))
    diary = Diary()
    assert run_search(of, options(gpus=2), run=mixed[0], catalogue=NO_FLAGS, watch=diary) == "done"
    assert not [p for _, p in diary.entries if "starts" in p.event]


def test_a_search_without_one_measurement_says_so(tmp_path: Path) -> None:
    from autotune.errors import NoValidTrial

    of = problem(trials=3)
    of = replace(of, space=replace(of.space, fixed={"gpu-memory-utilization": 0.01}))
    with pytest.raises(NoValidTrial, match=r"no trial|in a row"):
        run_search(of, options(gpus=1), run=new_run(tmp_path / "run", of), catalogue=NO_FLAGS, watch=Diary())


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, list[str]]:
    """A default that serves 4 sequences at once is easily beaten. Stopped while it confirms that, then resumed."""
    of = problem(trials=5)
    of = replace(of, space=replace(of.space, fixed={"max-num-seqs": 4}))
    run, diary = new_run(tmp_path_factory.mktemp("confirmed") / "run", of), Diary()

    def interrupt(progress: Progress) -> None:
        diary(progress)
        if progress.event.endswith("measured") and sum(r.role == "confirm" for r in progress.records) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    assert run_search(of, options(gpus=1), run=run, catalogue=NO_FLAGS, watch=interrupt) == "interrupted"
    before = [p.event for _, p in diary.entries if "(confirm)" in p.event]
    assert run_search(of, options(gpus=1), run=run, catalogue=NO_FLAGS, watch=diary) == "done"
    again = [p.event for _, p in diary.entries if "(confirm)" in p.event][len(before) :]
    return run, [event.split()[1] for event in again]


def test_a_search_ends_by_measuring_finalists_and_default_again_in_blocks(confirmed: tuple[RunDir, list[str]]) -> None:
    records = read_trials(confirmed[0])
    runs = [r for r in records if r.role == "confirm" and verdict_name(r.verdict) == "measured"]
    keys = [record.config.key for record in runs]
    assert records[0].config.key in keys
    assert [r.trial for r in runs] == list(range(runs[0].trial, runs[0].trial + len(runs)))
    assert runs[-1].trial == records[-1].trial  # the last thing it does
    counts = Counter(keys)
    assert len(set(counts.values())) == 1
    assert counts[keys[0]] >= 3
    arms = len(counts)
    assert all(len(set(keys[at : at + arms])) == arms for at in range(0, len(keys), arms))


def test_runs_of_one_block_get_the_same_traffic(confirmed: tuple[RunDir, list[str]]) -> None:
    runs = [r for r in read_trials(confirmed[0]) if r.role == "confirm" and r.attempt == 1]
    seeds = Counter(record.seed for record in runs)
    assert max(seeds.values()) == len({record.config.key for record in runs})


def test_a_confirmation_that_was_interrupted_goes_on_and_repeats_nothing(confirmed: tuple[RunDir, list[str]]) -> None:
    run, again = confirmed
    measured = [r.trial for r in read_trials(run) if r.role == "confirm" and verdict_name(r.verdict) == "measured"]
    assert len(measured) == len(set(measured))
    assert len(again) == len(set(again)) == len(measured) - 2


def test_the_conclusion_is_drawn_from_the_confirmation(confirmed: tuple[RunDir, list[str]]) -> None:
    of = problem(trials=5)
    found = conclude(read_trials(confirmed[0]), of.objectives, of.slos)
    assert found is not None
    assert found.decision == "better"


def test_each_arm_of_a_confirmation_ends_with_a_stress_that_feeds_no_trial_column(
    confirmed: tuple[RunDir, list[str]],
) -> None:
    import pandas as pd

    runs = [r for r in read_trials(confirmed[0]) if r.role == "confirm" and verdict_name(r.verdict) == "measured"]
    last = {record.config.key: record.trial for record in runs}
    rungs, trials = (pd.read_parquet(confirmed[0].table(name)) for name in ("rungs", "trials"))
    stress = rungs[rungs.rung == "stress"]
    assert sorted(stress.trial) == sorted(last.values())
    assert (stress.finished == stress.requests).all()
    assert (stress.requests == 2 * stress.concurrency).all()
    assert (stress.position == 1).all()
    assert set(trials.reference_rung.dropna()) == {"steady"}


def test_a_winner_that_dies_of_peak_load_is_not_concluded_better(tmp_path: Path) -> None:
    """All candidates let in 96 or more at once, for whom a GPU of which 98 % are given away has no room."""
    of = problem(trials=4)
    dimension = replace(of.space.dimensions[0], domain=Choice(values=(112, 128)))
    fixed: dict[str, FlagValue] = {"max-num-seqs": 4, "gpu-memory-utilization": 0.98}
    of = replace(of, space=replace(of.space, dimensions=(dimension, *of.space.dimensions[1:]), fixed=fixed))
    run = new_run(tmp_path / "run", of)
    assert run_search(of, options(gpus=1), run=run, catalogue=NO_FLAGS, watch=Diary()) == "done"
    records = read_trials(run)
    found = conclude(records, of.objectives, of.slos)
    assert found is not None
    assert (found.decision, found.winner) == ("keep the default", None)
    assert found.fallen
    died = [r for r in records if r.role == "confirm" and isinstance(r.verdict, Infeasible)]
    assert len(died) == len(found.finalists)
    assert {r.verdict.cause for r in died if isinstance(r.verdict, Infeasible)} == {"oom.runtime"}
    assert all([m.rung for m in r.measurements] == ["steady", "stress"] and r.measurement for r in died)
    assert found.baseline_stress is not None
    assert found.baseline_stress.survived


def overlap(one: TrialRecord, other: TrialRecord) -> bool:
    return one.started_at < other.ended_at and other.started_at < one.ended_at
