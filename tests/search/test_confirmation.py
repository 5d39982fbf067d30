from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from repeated_runs import LATENCY, LIMIT, OBJECTIVES, THROUGHPUT, config, run

from autotune.history.record import TrialRecord
from autotune.search.conclusion import conclude
from autotune.search.confirmation import (
    CONTENDERS,
    FEWEST_REPEATS,
    FINALISTS,
    MOST_REPEATS,
    PRIOR_CV,
    allot,
    baseline_of,
    baseline_repeats,
    blocks,
    contenders,
    cv_of,
    noise_of,
    repeats_for,
)

pytestmark = pytest.mark.timeout(10)

DEFAULT = run(0, "default", {}, 1000.0)


# ---------------------------------------------------------------- the noise


@pytest.mark.parametrize(
    ("trials", "repeats"), [(4, 0), (7, 0), (8, 2), (12, 2), (16, 2), (24, 3), (100, 13), (None, 13)]
)
def test_the_baseline_is_repeated_about_once_in_eight_and_twice_at_least(trials: int | None, repeats: int) -> None:
    assert baseline_repeats(trials or 100, trials) == repeats


@given(st.integers(0, 200), st.one_of(st.none(), st.integers(1, 200)))
def test_repeats_of_the_baseline_fall_due_one_after_the_other(candidates: int, trials: int | None) -> None:
    assert baseline_repeats(candidates + 1, trials) - baseline_repeats(candidates, trials) in (0, 1)


def test_before_any_repeat_five_percent_are_assumed() -> None:
    assert cv_of([DEFAULT, run(1, "search", {"a": 1}, 2000.0)], THROUGHPUT.metric) == PRIOR_CV


def test_noise_is_measured_between_runs_of_one_configuration_only() -> None:
    records = [DEFAULT, *(run(n, "baseline", {}, v) for n, v in ((1, 990.0), (2, 1010.0)))]
    records += [run(3, "screen", {"a": 1}, 4000.0), run(4, "screen", {"a": 1}, 4040.0)]
    noise = noise_of(records, THROUGHPUT.metric)
    assert noise is not None
    assert noise.df == 2
    assert noise.cv < 0.02
    assert cv_of(records, THROUGHPUT.metric) < PRIOR_CV


def test_the_very_first_run_which_warms_everything_up_is_no_evidence_of_noise() -> None:
    records = [run(0, "default", {}, 300.0), *(run(n, "baseline", {}, 1000.0 + n) for n in (1, 2, 3))]
    noise = noise_of(records, THROUGHPUT.metric)
    assert noise is not None
    assert noise.cv < 0.01


# ---------------------------------------------------------------- who is measured again


def test_contenders_are_those_that_noise_could_have_put_behind_the_best() -> None:
    records = [DEFAULT, *(run(n, "search", {"a": n}, v) for n, v in ((1, 1500.0), (2, 1450.0), (3, 1100.0)))]
    assert contenders(records, THROUGHPUT, (), cv=0.02) == (config({"a": 1}), config({"a": 2}))


def test_what_breaks_a_limit_lost_requests_or_lost_to_the_baseline_is_no_contender() -> None:
    records = [
        DEFAULT,
        run(1, "search", {"a": 1}, 1500.0, 101.0),
        run(2, "search", {"a": 2}, 1500.0, failed=1),
        run(3, "search", {"a": 3}, 990.0),
        run(4, "search", {"a": 4}, 1010.0),
    ]
    assert contenders(records, THROUGHPUT, (LIMIT,), cv=0.5) == (config({"a": 4}),)


def test_where_less_is_better_the_lowest_comes_first() -> None:
    records = [DEFAULT, run(1, "search", {"a": 1}, 1.0, 40.0), run(2, "search", {"a": 2}, 1.0, 39.0)]
    assert contenders(records, LATENCY, (), cv=0.05) == (config({"a": 2}), config({"a": 1}))


def test_after_screening_the_runs_that_chose_a_contender_no_longer_speak_for_it() -> None:
    records = [DEFAULT, run(1, "search", {"a": 1}, 1500.0), run(2, "search", {"a": 2}, 1400.0)]
    records += [run(n, "screen", {"a": a}, v) for n, a, v in ((3, 1, 1100.0), (4, 2, 1390.0), (5, 1, 1110.0))]
    assert contenders(records, THROUGHPUT, (), cv=0.05) == (config({"a": 2}),)


def test_the_baseline_is_what_runs() -> None:
    assert baseline_of([run(2, "search", {"a": 2}, 1.0), run(1, "incumbent", {"a": 1}, 1.0)]) == config({"a": 1})
    assert baseline_of([]) is None


# ---------------------------------------------------------------- how often


@given(st.integers(0, 200), st.integers(0, 40), st.floats(0.001, 1.0))
def test_no_more_runs_are_made_than_there_is_room_for(room: int, candidates: int, cv: float) -> None:
    plan = allot(runs=room, contenders=candidates, cv=cv)
    assert (plan is None) == (room < 4 or candidates == 0)
    if plan is not None:
        assert plan.runs <= room
        assert 1 <= plan.finalists <= min(candidates, FINALISTS)
        assert plan.screened == 0 or plan.finalists < plan.screened <= min(candidates, CONTENDERS)
        assert 2 <= plan.repeats <= MOST_REPEATS


def test_with_little_noise_few_repeats_do_and_with_much_as_many_as_there_may_be() -> None:
    assert (repeats_for(0.01), repeats_for(0.5)) == (FEWEST_REPEATS, MOST_REPEATS)


@given(st.integers(1, 5), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_each_block_holds_everyone_once_and_nobody_runs_twice_in_a_row(arms: int, repeats: int, seed: int) -> None:
    configs = [config({"a": n}) for n in range(arms)]
    order = blocks(configs, role="confirm", repeats=repeats, seed=seed)
    for block in range(repeats):
        assert Counter(r.config.key for r in order if r.block == block) == Counter(c.key for c in configs)
    assert [r.block for r in order] == sorted(r.block for r in order)
    assert arms == 1 or all(a.config != b.config for a, b in pairwise(order))


def test_the_order_follows_from_the_seed() -> None:
    configs = [config({"a": n}) for n in range(3)]
    first, again, other = (blocks(configs, role="confirm", repeats=4, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


# ---------------------------------------------------------------- what it shows


def confirmed(*values: tuple[dict[str, int], float, float], repeats: int = 4, cv: float = 0.01) -> list[TrialRecord]:
    """A default at 1000 and a candidate that looked like 1300, then `repeats` runs of each (flags, tok/s, TTFT)."""
    rng = np.random.default_rng(3)
    records = [DEFAULT, run(1, "search", {"a": 1}, 1300.0)]
    for _ in range(repeats):
        for flags, tok_per_s, ttft in values:
            noise = float(np.exp(cv * rng.standard_normal()))
            records.append(run(len(records), "confirm", flags, tok_per_s * noise, ttft * noise))
    return records


def test_a_search_that_confirmed_nothing_concludes_nothing() -> None:
    assert conclude([DEFAULT, run(1, "search", {"a": 1}, 1300.0)], OBJECTIVES, ()) is None


def test_a_gain_beyond_the_noise_is_better_and_smaller_than_the_search_had_promised() -> None:
    found = conclude(confirmed(({}, 1000.0, 50.0), ({"a": 1}, 1200.0, 60.0)), OBJECTIVES, ())
    assert found is not None
    assert found.decision == "better"
    assert found.winner is not None
    assert found.winner.config == config({"a": 1})
    assert found.winner.gains[THROUGHPUT.metric].gain == pytest.approx(0.2, abs=0.03)
    assert found.winner.gains[LATENCY.metric].high < 0
    assert found.winner.shrinkage(THROUGHPUT.metric) == pytest.approx(-0.1, abs=0.03)


def test_a_gain_inside_the_noise_is_no_clear_winner() -> None:
    records = confirmed(({}, 1000.0, 50.0), ({"a": 1}, 1010.0, 50.0), cv=0.08)
    found = conclude(records, OBJECTIVES, ())
    assert found is not None
    assert (found.decision, found.winner) == ("no clear winner", None)


def test_a_finalist_that_turns_out_worse_leaves_the_default() -> None:
    found = conclude(confirmed(({}, 1000.0, 50.0), ({"a": 1}, 900.0, 50.0)), OBJECTIVES, ())
    assert found is not None
    assert found.decision == "keep the default"


def test_a_faster_finalist_that_loses_a_limit_leaves_the_default() -> None:
    found = conclude(confirmed(({}, 1000.0, 50.0), ({"a": 1}, 1500.0, 150.0)), OBJECTIVES, (LIMIT,))
    assert found is not None
    assert found.decision == "keep the default"


def test_a_slower_finalist_that_keeps_a_limit_which_the_default_breaks_is_better() -> None:
    found = conclude(confirmed(({}, 1000.0, 150.0), ({"a": 1}, 900.0, 60.0)), OBJECTIVES, (LIMIT,))
    assert found is not None
    assert found.decision == "better"
    assert found.winner is not None
    assert found.winner.rescues == (LIMIT,)


def test_two_finalists_get_wider_intervals_than_one() -> None:
    arms: tuple[tuple[dict[str, int], float, float], ...] = (({}, 1000.0, 50.0), ({"a": 1}, 1200.0, 50.0))
    alone = conclude(confirmed(*arms), OBJECTIVES, ())
    both = conclude(confirmed(*arms, ({"a": 2}, 1100.0, 50.0)), OBJECTIVES, ())
    assert alone is not None
    assert both is not None
    assert both.finalists[0].gains[THROUGHPUT.metric].level > alone.finalists[0].gains[THROUGHPUT.metric].level
    assert both.finalists[0].config == config({"a": 1})


def test_a_baseline_that_never_ran_again_leaves_nothing_to_compare_with() -> None:
    found = conclude(confirmed(({"a": 1}, 1200.0, 50.0)), OBJECTIVES, ())
    assert found is not None
    assert found.decision == "no clear winner"
    assert found.baseline_runs == 0


def test_a_search_that_went_on_after_its_confirmation_needs_another() -> None:
    records = confirmed(({}, 1000.0, 50.0), ({"a": 1}, 1200.0, 60.0))
    assert conclude([*records, run(len(records), "search", {"a": 9}, 1400.0)], OBJECTIVES, ()) is None


@given(st.integers(1, 6), st.integers(0, 50))
def test_half_a_confirmation_is_read_without_a_fault(repeats: int, missing: int) -> None:
    records = confirmed(({}, 1000.0, 50.0), ({"a": 1}, 1200.0, 60.0), repeats=repeats)
    conclude(records[: max(1, len(records) - missing)], OBJECTIVES, (LIMIT,))
