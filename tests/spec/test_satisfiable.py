import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.spec.rules import Rule
from autotune.spec.satisfiable import RuleProblem, check_rules
from autotune.spec.space import Bundles, Choice, Condition, Dimension, IntRange, SearchSpace


def space(*dimensions: Dimension, rules: tuple[str, ...], fixed: dict[str, int] | None = None) -> SearchSpace:
    return SearchSpace(
        name="s", model="m", dimensions=dimensions, rules=tuple(Rule(text=text) for text in rules), fixed=fixed or {}
    )


def whole(name: str, low: int, high: int) -> Dimension:
    return Dimension(name=name, domain=IntRange(low=low, high=high))


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_an_order_between_two_ranges_is_judged_by_their_ends(a: int, b: int, c: int, d: int) -> None:
    left, right = whole("left", min(a, b), max(a, b)), whole("right", min(c, d), max(c, d))
    given_space = space(left, right, rules=("left > right",))
    if max(a, b) > min(c, d):
        check_rules(given_space, {})
    else:
        with pytest.raises(RuleProblem, match="no point"):
            check_rules(given_space, {})


def test_rules_that_only_clash_together_are_told_without_blaming_one() -> None:
    with pytest.raises(RuleProblem) as caught:
        check_rules(space(whole("a", 0, 10), rules=("a > 6", "a < 4")), {})
    assert caught.value.rule is None


def test_the_rule_that_nothing_obeys_is_named() -> None:
    with pytest.raises(RuleProblem) as caught:
        check_rules(space(whole("a", 0, 10), whole("b", 0, 10), rules=("a > 6", "a + b > 20")), {})
    assert caught.value.rule is not None
    assert caught.value.rule.text == "a + b > 20"


def test_fixed_flags_and_defaults_count() -> None:
    check_rules(space(whole("a", 0, 10), rules=("a >= b",), fixed={"b": 10}), {})
    with pytest.raises(RuleProblem):
        check_rules(space(whole("a", 0, 10), rules=("a >= b",)), {"b": 11})


def test_a_rule_about_an_unknown_default_is_taken_as_kept() -> None:
    check_rules(space(whole("a", 0, 10), rules=("a >= b",)), {})


def test_a_bundles_flags_count() -> None:
    bundle = Dimension(name="how", target="bundle", domain=Bundles(options={"x": {}, "y": {"b": 3}}))
    check_rules(space(bundle, rules=("b > 2",), fixed={"b": 1}), {})
    with pytest.raises(RuleProblem):
        check_rules(space(bundle, rules=("b > 3",), fixed={"b": 1}), {})


def test_an_inactive_dimension_has_its_default() -> None:
    on = Dimension(name="on", domain=Choice(values=(True, False)))
    inner = Dimension(name="b", domain=Choice(values=(5, 6)), when=Condition(name="on", values=(True,)))
    check_rules(space(on, inner, rules=("on or b > 8",)), {"b": 9})
    with pytest.raises(RuleProblem):
        check_rules(space(on, inner, rules=("not on and b > 8",)), {"b": 7})


@pytest.mark.parametrize("rule", ["a < text", "a / zero > 1"])
def test_a_rule_that_cant_be_computed_says_why(rule: str) -> None:
    with pytest.raises(RuleProblem, match="can't be computed"):
        check_rules(space(whole("a", 0, 10), rules=(rule,)), {"text": "x", "zero": 0})


def test_a_space_of_billions_of_points_is_judged_from_a_sample() -> None:
    many = [whole(f"d{n}", 1, 10**6) for n in range(6)]
    check_rules(space(*many, rules=("d0 > d1 and d2 > d3 and d4 > d5",)), {})
