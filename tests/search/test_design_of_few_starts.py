from __future__ import annotations

from itertools import pairwise

import pytest

from autotune.search.design import by_start, few_starts, initial_design
from autotune.spec.live import LiveSplit
from autotune.spec.space import Choice, Condition, Dimension, Point, SearchSpace

SPLIT = LiveSplit()


def space(*, when: Condition | None = None) -> SearchSpace:
    return SearchSpace(
        name="s",
        model="m",
        dimensions=(
            Dimension(name="block-size", domain=Choice(values=(16, 32, 64))),
            Dimension(name="kv-cache-dtype", domain=Choice(values=("auto", "fp8"))),
            Dimension(name="max-num-seqs", domain=Choice(values=(8, 16, 32, 64, 128))),
            Dimension(name="enable-chunked-prefill", domain=Choice(values=(True, False))),
            Dimension(name="long-prefill-token-threshold", domain=Choice(values=(0, 64)), when=when),
        ),
    )


def design(searched: SearchSpace) -> list[Point]:
    return initial_design(searched, seed=1, size=9, refused=lambda _: False, key=lambda p: searched.decode(p).key)


def starts(searched: SearchSpace, points: list[Point]) -> int:
    return len({SPLIT.launch_key(searched.decode(point)) for point in points})


@pytest.mark.parametrize("when", [None, Condition(name="enable-chunked-prefill", values=(True,))])
def test_one_engine_measures_three_points_that_differ_in_live_settings(when: Condition | None) -> None:
    searched = space(when=when)
    spread = design(searched)
    few = few_starts(searched, spread, SPLIT)
    assert starts(searched, few) <= 3 < starts(searched, spread)
    live = [{n: v for n, v in point.items() if n not in ("block-size", "kv-cache-dtype")} for point in few]
    assert live == [{n: v for n, v in point.items() if n not in ("block-size", "kv-cache-dtype")} for point in spread]
    for point in few:
        assert all(searched.active(d, point) == (d.name in point) for d in searched.dimensions)


def test_points_stay_as_they_are_where_a_setting_depends_on_a_launch_flag() -> None:
    searched = space(when=Condition(name="block-size", values=(16,)))
    assert few_starts(searched, design(searched), SPLIT) == design(searched)


def test_points_of_one_engine_come_one_after_the_other() -> None:
    searched = space()
    ordered = by_start(design(searched), searched.decode, SPLIT)
    keys = [SPLIT.launch_key(searched.decode(point)) for point in ordered]
    changes = sum(one != two for one, two in pairwise(keys))
    assert changes == len(set(keys)) - 1
    assert ordered[0] == design(searched)[0]
