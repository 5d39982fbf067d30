"""A run can be read at any moment: while it is written, and after its writer was killed."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pandas as pd
import pytest
from test_rundir import header

from autotune.history.reading import read_trials
from autotune.history.rundir import RunDir

WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from history_records import a_trial
from autotune.history.rundir import RunDir
from autotune.history.tables import append_rungs, append_trial

run = RunDir.open(Path(sys.argv[1]))
first = int(sys.argv[3])
for trial in range(first, first + 100_000):
    append_rungs(run, a_trial(trial))
    append_trial(run, a_trial(trial))
    run.update(message=str(trial))
    print(trial, flush=True)
"""


@pytest.mark.timeout(60)
def test_a_writer_killed_at_any_moment_leaves_everything_it_reported(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, header())
    chance = random.Random(1)
    reported: set[int] = set()
    for repetition in range(4):
        words = [sys.executable, "-c", WRITER, str(tmp_path), str(Path(__file__).parent), str(repetition * 100_000)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            reported.add(int(writer.stdout.readline()))
            end = time.monotonic() + chance.uniform(0.1, 0.4)
            while time.monotonic() < end:  # read while it is being written
                pd.read_parquet(run.table("trials"), columns=["trial", "verdict"])
                duckdb.sql(f"select count(*) from read_parquet('{run.table('trials')}/*.parquet')").fetchall()
                RunDir.open(tmp_path)
            writer.kill()
            reported |= {int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")}
    records = read_trials(run)
    assert reported <= {record.trial for record in records}
    assert all(len(record.measurements) == 1 for record in records)
    assert len(pd.read_parquet(run.table("trials"))) == len(records)
