"""The result file of a benchmark (`benchmarks/result.py`)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.result import Result, read


def test_a_result_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    result = Result(name="starts", figures={"start_s": 1.5}, command=("python", "-m", "benchmarks.starts", "--a b"))
    result.write(folder=tmp_path)
    assert read("starts", folder=tmp_path) == result


def test_the_file_has_the_keys_that_every_benchmark_shares(tmp_path: Path) -> None:
    content = json.loads(Result(name="starts", figures={}).write(folder=tmp_path).read_text())
    assert list(content) == ["name", "figures", "command", "date", "versions", "machine"]


def test_raw_data_lies_beside_the_figures(tmp_path: Path) -> None:
    raw = pa.table({"start_s": [1.0, 2.0]})
    Result(name="starts", figures={"start_s": 1.5}).write(raw, folder=tmp_path)
    assert pq.read_table(tmp_path / "starts.parquet").equals(raw)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_figure_that_was_not_measured_is_refused(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="start_s"):
        Result(name="starts", figures={"start_s": value}).write(folder=tmp_path)


def test_the_table_has_one_line_per_figure() -> None:
    assert Result(name="starts", figures={"start_s": 1.5, "n": 3}).table() == "start_s  1.5\nn        3"
