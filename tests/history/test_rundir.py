from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import UserError
from autotune.history.rundir import RunDir, RunHeader
from autotune.spec.objective import Budget, Objective, Slo


def header(**changes: object) -> RunHeader:
    values: dict[str, object] = {
        "name": "tiny-cpu",
        "seed": 3,
        "command": ("vtune", "search"),
        "space_text": "model: m\n",
        "workload_text": "name: chat\n",
        "objectives": (Objective(metric="output_tok_per_s", direction="maximize"),),
        "slos": (Slo(metric="ttft_p99_ms", limit=2000.0),),
        "budget": Budget(gpu_s=60.0, wall_s=None, trials=12),
        "started_at": 1.7e9,
        "options": {"simulate": True, "vllm_python": None},
    }
    return RunHeader(**(values | changes))  # type: ignore[arg-type]


def test_a_header_read_back_equals_the_one_written(tmp_path: Path) -> None:
    RunDir.create(tmp_path / "run", header())
    assert RunDir.open(tmp_path / "run").header() == header()


def test_an_update_changes_only_what_it_names(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, header())
    run.update(state="done", finished_at=1.8e9)
    assert run.header() == header(state="done", finished_at=1.8e9)


def test_a_state_that_does_not_exist_is_not_written(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, header())
    with pytest.raises(ValueError, match="state"):
        run.update(state="asleep")
    assert run.header().state == "running"


def test_an_update_leaves_no_temporary_file(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, header())
    run.update(message="x")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["run.json"]


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    RunDir.create(tmp_path, header())
    with pytest.raises(UserError, match=r"run\.json.*--resume"):
        RunDir.create(tmp_path, header())


def test_a_folder_without_a_run_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run\.json: no run lies here"):
        RunDir.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"schema_version": 99}, "schema_version"),
        ({"schema_version": "one"}, "schema_version"),
        ({"seed": "many"}, "seed"),
        ({"colour": "blue"}, "colour"),
        ({"slos": [{"metric": "ttft_p99_ms"}]}, r"slos\.0\.limit"),
    ],
)
def test_a_header_that_cannot_be_used_is_an_error_that_names_the_key(
    tmp_path: Path, change: dict[str, object], key: str
) -> None:
    run = RunDir.create(tmp_path, header())
    run.header_file.write_text(json.dumps(json.loads(run.header_file.read_text()) | change))
    with pytest.raises(UserError, match=rf"run\.json: {key}"):
        RunDir.open(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00\xff"])
def test_a_corrupt_header_is_an_error_that_names_the_file(tmp_path: Path, content: str) -> None:
    run = RunDir.create(tmp_path, header())
    run.header_file.write_text(content)
    with pytest.raises(UserError, match=r"run\.json"):
        RunDir.open(tmp_path)


def test_a_second_attempt_has_log_and_failure_folders_of_its_own(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, header())
    folders = {run.logs(3, 1), run.logs(3, 2), run.failures(3, 1), run.failures(3, 2), run.logs(31, 1)}
    assert len(folders) == 5
    assert all(folder.is_dir() for folder in folders)


def test_two_writers_cannot_hold_one_run(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, header())
    with run.lock(), pytest.raises(UserError, match=r"another vtune \(process \d+\)"), RunDir(tmp_path).lock():
        pass
    with run.lock():
        pass


@pytest.mark.timeout(20)
def test_a_killed_writer_lets_go_of_the_run(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, header())
    hold = (
        "import sys, time; from pathlib import Path; from autotune.history.rundir import RunDir\n"
        "with RunDir(Path(sys.argv[1])).lock(): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"process {holder.pid}"), run.lock():
            pass
        holder.kill()
    with run.lock():
        pass
