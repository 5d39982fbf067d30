"""BEN-09: a batch of 97 runs slower than one of 96, because CUDA graphs are captured for multiples of 8."""

from __future__ import annotations

from pathlib import Path

import yaml
from spec_catalogue import problem, with_lines

from autotune.search.points import every_point

CASE = Path(__file__).parents[1] / "fixtures" / "cases" / "BEN-09"


def test_multiples_of_8_are_on_the_grid() -> None:
    asked = yaml.safe_load((CASE / "space.yaml").read_text())["max_num_seqs"]
    entry = f"  max-num-seqs: {{min: {asked['low']}, max: {asked['high']}, multiple_of: 8}}"
    space = problem(with_lines("search:", entry, drop=("search",))).space
    assert [point["max-num-seqs"] for point in every_point(space)] == [96, 104]
