"""What is said beside a trial: batches off the grid of CUDA graphs (field case BEN-09), answers that say nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import OBJECTIVES, measured, measurement, record, write_run

from autotune.history.reading import read_trials
from autotune.history.record import TrialRecord
from autotune.history.rundir import RunDir
from autotune.report.cautions import cautions
from autotune.report.markdown import markdown
from autotune.report.study import read_study
from autotune.report.trial_line import trial_line
from autotune.spec.measurement import StartFacts
from autotune.spec.verdict import Measured

ON_A_GPU = StartFacts(vllm_version="0.24.0")


def ran(seqs: int, facts: StartFacts = ON_A_GPU, devices: tuple[str, ...] = ("0",)) -> TrialRecord:
    return replace(measured(1, 2000.0, 50.0, {"max-num-seqs": seqs}), facts=facts, devices=devices)


@pytest.mark.parametrize("seqs", [90, 97, 100, 110])
def test_a_trial_off_the_grid_says_so_on_its_line(seqs: int) -> None:
    assert f"max-num-seqs {seqs} lies between sizes" in trial_line(ran(seqs), OBJECTIVES)


@pytest.mark.parametrize("seqs", [96, 104])
def test_a_trial_on_the_grid_says_nothing(seqs: int) -> None:
    assert cautions(ran(seqs)) == ()


def test_engines_without_graphs_say_nothing() -> None:
    assert cautions(ran(97, StartFacts(vllm_version="0.24.0"), ("cpu",))) == ()
    assert cautions(ran(97, StartFacts())) == ()


def test_a_truncated_graph_size_is_said_of_the_trial() -> None:
    [said] = cautions(ran(96, replace(ON_A_GPU, graphs_truncated_to=4)))
    assert "truncated max-cudagraph-capture-size to 4" in said


def test_degenerate_answers_are_said_of_the_trial() -> None:
    seen = replace(measurement(2000.0, 50.0), degenerate_share=0.75)
    assert cautions(record(1, Measured(measurement=seen))) == (
        "75 % of its answers were empty or one token over and over",
    )


def test_the_report_says_it_of_the_best(tmp_path: Path) -> None:
    best = ran(97, replace(ON_A_GPU, graphs_truncated_to=4))
    run = write_run(tmp_path / "run", [measured(0, 1000.0, 50.0, role="default"), best])
    kept = {one.trial: one.facts for one in read_trials(RunDir(run))}
    assert kept[1] == best.facts
    page = markdown(read_study(run))
    assert "Of trial 1: max-num-seqs 97 lies between sizes that CUDA graphs are captured for, 96 and 104" in page
    assert "Of trial 1: vLLM truncated max-cudagraph-capture-size to 4" in page
