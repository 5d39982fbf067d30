from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.run.ledger import CONFIRMATION_SHARE, SAME_FAILURE_LIMIT, SAME_SHORTAGE_LIMIT, Ledger
from autotune.spec.objective import Budget
from autotune.spec.verdict import Broken, Infeasible
from benchmarks.aa import RUN_S, SimulatedSearch, candidate


@pytest.fixture
def search() -> SimulatedSearch:
    """A default and three candidates, 7 s each, one after the other."""
    begun = SimulatedSearch(cv=0.02, effect=0.0, seed=1)
    begun.measure("default", candidate(None))
    for number in range(3):
        begun.measure("search", candidate(number))
    return begun


def limited(search: SimulatedSearch, **limits: float | int | None) -> Ledger:
    ledger = search.ledger
    budget = replace(Budget(gpu_s=None, wall_s=None, trials=None), **limits)  # type: ignore[arg-type]  # a test's limits
    ledger.problem = replace(ledger.problem, budget=budget)
    return ledger


def test_repeats_do_not_count_as_trials(search: SimulatedSearch) -> None:
    ledger = limited(search, trials=5)
    assert ledger.trials_left() == 1
    search.measure("baseline", candidate(None))
    search.measure("confirm", candidate(1))
    assert ledger.trials_left() == 1


def test_the_search_ends_while_there_is_time_to_confirm(search: SimulatedSearch) -> None:
    ledger = limited(search, wall_s=4 * (RUN_S + 1) / (1 - CONFIRMATION_SHARE) - 0.1)
    assert not ledger.over()
    assert not ledger.search_over(slots=1, confirm=False)
    assert ledger.search_over(slots=1, confirm=True)


def test_no_more_is_kept_for_the_confirmation_than_it_needs(search: SimulatedSearch) -> None:
    ledger = limited(search, wall_s=3600.0)
    search.now = 3600.0 * (1 - CONFIRMATION_SHARE)
    assert not ledger.search_over(slots=1, confirm=True)
    assert not ledger.search_over(slots=8, confirm=True)


@pytest.mark.parametrize("limit", ["wall_s", "gpu_s"])
def test_the_confirmation_takes_its_share_of_the_budget_and_no_more(search: SimulatedSearch, limit: str) -> None:
    ledger = limited(search, **{limit: 700.0})
    room = ledger.confirmation_runs(slots=1, since=3)
    assert room == int(CONFIRMATION_SHARE * 700.0 / (RUN_S + 1))
    search.measure("screen", candidate(1))
    assert ledger.confirmation_runs(slots=1, since=3) == room - 1


def test_a_search_that_gave_up_confirms_nothing(search: SimulatedSearch) -> None:
    ledger = limited(search, wall_s=3600.0)
    ledger.halted = "the same failure again and again"
    assert ledger.confirmation_runs(slots=1, since=3) == 0


@pytest.mark.parametrize(("before_gpu_s", "offered_gpu_s"), [(0.0, 60.0), (200.0, 260.0), (None, None)])
def test_all_devices_count_from_the_beginning_of_every_session(
    search: SimulatedSearch, before_gpu_s: float | None, offered_gpu_s: float | None
) -> None:
    ledger = replace(search.ledger, devices=2, offered_before_gpu_s=before_gpu_s, clock=lambda: 30.0)
    assert ledger.offered_gpu_s == offered_gpu_s


# ---------------------------------------------------------------- giving up


def failing(
    search: SimulatedSearch, cause: str, count: int, *, verdict: type[Infeasible | Broken] = Infeasible
) -> Ledger:
    ledger = search.ledger
    template = ledger.records[0]
    for number in range(count):
        ended = Broken(error="", cause=cause) if verdict is Broken else Infeasible(cause=cause, evidence="")
        ledger.records.append(replace(template, trial=100 + number, verdict=ended))
    return ledger


def test_six_identical_failures_in_a_row_are_enough_and_the_message_says_what_to_do(search: SimulatedSearch) -> None:
    assert failing(search, "config.unsupported", SAME_FAILURE_LIMIT - 1).stuck() == ""
    why = failing(search, "config.unsupported", 1).stuck()
    assert why.startswith("6 attempts in a row ended with the same failure: config.unsupported (take this value out")


def test_a_failure_of_the_machine_counts_each_attempt(search: SimulatedSearch) -> None:
    assert "infra.gpu_busy (find what else" in failing(search, "infra.gpu_busy", 6, verdict=Broken).stuck()


def test_a_lack_of_memory_never_ends_a_search_in_which_an_engine_ran(search: SimulatedSearch) -> None:
    assert failing(search, "capacity.no_kv_blocks", 3 * SAME_SHORTAGE_LIMIT).stuck() == ""


def test_a_search_that_begins_with_engines_that_are_too_small_goes_on_for_a_while(search: SimulatedSearch) -> None:
    ledger = failing(search, "capacity.no_kv_blocks", SAME_SHORTAGE_LIMIT)
    ledger.records[:] = [record for record in ledger.records if isinstance(record.verdict, Infeasible)]
    assert ledger.stuck() != ""
    del ledger.records[0]
    assert ledger.stuck() == ""


def test_different_failures_are_no_reason_to_give_up(search: SimulatedSearch) -> None:
    failing(search, "config.unsupported", 5)
    assert failing(search, "config.conflict", 5).stuck() == ""
