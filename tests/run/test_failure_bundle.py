"""What failures/<trial>/ keeps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from synthetic_run import record, write_run

from autotune.history.rundir import RunDir
from autotune.run.searcher import keep_failure
from autotune.spec.verdict import Infeasible


@pytest.mark.parametrize(
    ("cause", "log"), [("unknown", "failures/0000/engine.log"), ("oom.weights", "logs/0000/engine.log")]
)
def test_the_whole_log_is_named_and_lies_in_the_bundle_where_the_cause_is_unknown(
    tmp_path: Path, cause: str, log: str
) -> None:
    failed = record(0, Infeasible(cause=cause, evidence="KeyError: 'layers.0'"))
    run = RunDir(Path(write_run(tmp_path / "one", [failed])))
    (run.logs(0, 1) / "engine.log").write_text("the whole\nlog\n")
    keep_failure(run, failed)
    kept = json.loads((run.failures(0, 1) / "failure.json").read_text())
    assert kept["engine_log"] == log
    assert (run.path / kept["engine_log"]).read_text() == "the whole\nlog\n"
