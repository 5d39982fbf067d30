from dataclasses import replace

from spec_catalogue import problem, with_lines

from autotune.spec.config import EngineConfig
from autotune.spec.one_change import one_change_each
from autotune.spec.space import Choice, Condition, Dimension, FloatRange, IntRange, SearchSpace

_BOTH = Choice(values=(True, False))


def test_the_default_comes_first_and_then_every_value_once() -> None:
    found = list(one_change_each(problem()))
    assert (found[0].name, found[0].config) == (None, problem().space.default())
    sequences = [(one.value, one.config.flags["max-num-seqs"]) for one in found if one.name == "max-num-seqs"]
    assert sequences == [(4, 4), (8, 8), (16, 16)]
    assert len({one.config.key for one in found}) == len(found)


def test_the_incumbent_is_one_of_them() -> None:
    running = EngineConfig(model="m", flags={"max-num-seqs": 99})
    found = list(one_change_each(replace(problem(), incumbent=running)))
    assert [one.config for one in found if one.incumbent] == [running]


def test_a_range_gives_its_ends_and_some_between() -> None:
    values = [one.value for one in one_change_each(problem()) if one.name == "max-num-batched-tokens"]
    assert values[0] == 128 and values[-1] == 1024
    assert all(isinstance(value, int) and value % 128 == 0 for value in values)
    space = SearchSpace(
        name="s",
        model="m",
        dimensions=(
            Dimension(name="a", domain=IntRange(low=4, high=1024, log=True)),
            Dimension(name="b", domain=FloatRange(low=0.8, high=0.95, step=0.01)),
            Dimension(name="c", domain=FloatRange(low=0.0, high=1.0)),
        ),
    )
    found = list(one_change_each(replace(problem(), space=space)))
    assert [one.value for one in found if one.name == "a"] == [4, 16, 64, 256, 1024]
    assert {one.value for one in found if one.name == "b"} >= {0.8, 0.95}
    assert {one.value for one in found if one.name == "c"} == {0.0, 0.25, 0.5, 0.75, 1.0}


def test_what_breaks_a_rule_is_left_out() -> None:
    ruled = problem(space=with_lines("rules: [max-num-seqs <= 8]"))
    assert [one.value for one in one_change_each(ruled) if one.name == "max-num-seqs"] == [4, 8]


def test_a_condition_is_met_where_the_default_does_not() -> None:
    threshold = Dimension(
        name="long-prefill-token-threshold",
        domain=IntRange(low=64, high=64),
        when=Condition(name="enable-chunked-prefill", values=(False,)),
    )
    space = SearchSpace(
        name="s", model="m", dimensions=(Dimension(name="enable-chunked-prefill", domain=_BOTH), threshold)
    )
    found = [one for one in one_change_each(replace(problem(), space=space)) if one.name == threshold.name]
    assert [one.config.flags["enable-chunked-prefill"] for one in found] == [False]
