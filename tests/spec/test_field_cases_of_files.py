"""Field cases about what a space or a workload may ask for, each with its input: tests/fixtures/cases."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from spec_catalogue import problem, with_lines

from autotune.errors import UserError
from autotune.search.points import every_point
from autotune.spec.workload_file import parse_workload

CASES = Path(__file__).parents[1] / "fixtures" / "cases"


def test_ben_03_a_rate_without_end_measures_the_backlog_and_is_refused() -> None:
    asked = yaml.safe_load((CASES / "BEN-03" / "workload.yaml").read_text())
    text = (
        "name: w\nrequests: {prompt_tokens: 100, output_tokens: 10}\n"
        f"rungs:\n  - {{name: all, rate: {asked['request_rate']} /s, requests: {asked['num_requests']}}}\n"
        "reference_rungs: [all]\n"
    )
    with pytest.raises(UserError, match=r"rungs\.0\.rate"):
        parse_workload(text, file="w.yaml")


def test_ben_09_multiples_of_8_are_on_the_grid_of_captured_graphs() -> None:
    """A batch of 97 runs slower than one of 96: CUDA graphs are captured for multiples of 8."""
    asked = yaml.safe_load((CASES / "BEN-09" / "space.yaml").read_text())["max_num_seqs"]
    entry = f"  max-num-seqs: {{min: {asked['low']}, max: {asked['high']}, multiple_of: 8}}"
    space = problem(with_lines("search:", entry, drop=("search",))).space
    assert [point["max-num-seqs"] for point in every_point(space)] == [96, 104]
