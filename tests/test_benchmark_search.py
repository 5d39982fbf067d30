"""The public benchmark of the search: its replay, its judging, and the product driven in virtual time."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import replace

import pytest

from autotune.search.points import every_point
from autotune.spec.measurement import Measurement
from autotune.spec.objective import Slo
from benchmarks.search import table
from benchmarks.search.figures import figures
from benchmarks.search.judge import Scale, judge
from benchmarks.search.peers import PEERS, fresh, search
from benchmarks.search.problems import CASES, STOP_S, WARM_UP_S, Case
from benchmarks.search.replay import looks
from benchmarks.search.runs import Event, Run
from benchmarks.search.table import budget_gpu_s, key_of
from benchmarks.search.tune import Parts, vtune

CASE = next(case for case in CASES if case.name == "few-users-1.5b-l40s")
ROWS = table.read(CASE)
RAN = [row for row in ROWS.values() if row.cause is None]
BUDGET = budget_gpu_s(ROWS) / 4


def event(key: str, ended_s: float, **changes: object) -> Event:
    values: dict[str, object] = {"key": key, "began_s": ended_s - 10, "ended_s": ended_s, "gpus": 1, "kind": "measured"}
    return Event(**(values | changes))  # type: ignore[arg-type]


# ---------------------------------------------------------------- problems and tables


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_table_is_of_its_definition_and_has_every_configuration(case: Case) -> None:
    rows = table.read(case)
    assert rows.keys() == table.configs(case).keys()
    assert any(row.meets(case) for row in rows.values())


def test_the_problems_are_as_different_as_they_are_meant_to_be() -> None:
    shares = [statistics.mean(row.cause is not None for row in table.read(case).values()) for case in CASES]
    assert len(CASES) >= 8
    assert min(shares) < 0.02 and max(shares) > 0.5
    assert {case.devices for case in CASES} == {1, 4} and max(case.cv for case in CASES) >= 0.1


def test_a_row_of_a_table_is_what_the_simulated_engine_gives() -> None:
    key = min(ROWS)
    config = table.configs(CASE)[key]
    again = table.run(CASE, key, config)
    assert again.cause == ROWS[key].cause and again.start_s == pytest.approx(ROWS[key].start_s)
    assert again.values == pytest.approx(ROWS[key].values)


def test_a_table_of_another_definition_is_refused() -> None:
    other = replace(CASE, problem=replace(CASE.problem, slos=(Slo(metric="ttft_p99_ms", limit=1.0),)))
    with pytest.raises(SystemExit, match="isn't of this definition"):
        table.read(other)


# ---------------------------------------------------------------- replay


def test_the_last_look_is_the_runs_own_value_and_lies_where_the_noise_says() -> None:
    row = RAN[0]
    ends = [list(looks(CASE, row, seed=seed, every_s=None))[-1] for seed in range(300)]
    metric = "output_tok_per_s_per_gpu"
    logs = [math.log((end.measurement.value(metric) or 0.0) / row.values[metric]) for end in ends if end.measurement]
    assert abs(statistics.mean(logs)) < 0.01
    assert statistics.stdev(logs) == pytest.approx(math.hypot(CASE.cv, CASE.cv / 2, 0.015), rel=0.2)
    assert all(end.at_s == row.start_s + WARM_UP_S + row.load_s for end in ends)


def test_intervals_hold_the_runs_own_value_about_as_often_as_they_say() -> None:
    row, metric, held, count = RAN[0], "output_tok_per_s_per_gpu", 0, 0
    for seed in range(120):
        seen = [look.measurement for look in looks(CASE, row, seed=seed) if look.measurement]
        final = seen[-1].value(metric)
        assert final is not None
        middle = seen[len(seen) // 2]
        low, high = middle.intervals[metric]
        held += low <= final <= high
        count += 1
    assert held / count > 0.93


def test_a_failed_start_shows_its_end_alone() -> None:
    dead = next(row for row in ROWS.values() if row.cause is not None)
    (only,) = looks(CASE, dead, seed=1)
    assert only.measurement is None and only.at_s == dead.start_s


# ---------------------------------------------------------------- judging


def test_whoever_measures_the_whole_front_has_arrived_and_whoever_measures_nothing_has_not() -> None:
    scale = Scale.of(CASE, ROWS)
    every = Run(events=tuple(event(row.key, 10.0 * n) for n, row in enumerate(RAN, start=1)), took_s=1e5, said=None)
    found = judge(CASE, ROWS, scale, every)
    assert found.volume == pytest.approx(1.0) and found.regret == 0.0 and found.arrived_gpu_s is not None
    nothing = judge(CASE, ROWS, scale, Run(events=(), took_s=5.0, said=None))
    assert (nothing.arrived_gpu_s, nothing.volume, nothing.regret) == (None, 0.0, 1.0)


def test_a_stopped_trial_counts_for_nothing_that_was_measured() -> None:
    best = min(RAN, key=lambda row: row.losses(CASE))
    run = Run(events=(event(best.key, 10.0, kind="pruned"),), took_s=10.0, said=None)
    found = judge(CASE, ROWS, Scale.of(CASE, ROWS), run)
    assert (found.volume, found.pruned, found.false_prunes, found.truly_best_prunes) == (0.0, 1, 1, 1)


def test_to_recommend_less_than_the_default_is_worse_and_the_default_itself_is_not() -> None:
    default = key_of(CASE.problem.space.default())
    worst = max(RAN, key=lambda row: row.losses(CASE))
    scale = Scale.of(CASE, ROWS)
    assert judge(CASE, ROWS, scale, Run(events=(), took_s=1.0, said=worst.key)).worse
    assert judge(CASE, ROWS, scale, Run(events=(), took_s=1.0, said=None)).worse
    assert not judge(CASE, ROWS, scale, Run(events=(), took_s=1.0, said=default)).worse


# ---------------------------------------------------------------- methods


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.timeout(20)
def test_a_peer_stays_within_its_budget_and_tries_nothing_twice(name: str) -> None:
    run = search(name, CASE, ROWS, seed=1, budget_gpu_s=BUDGET)
    assert run.events and run.took_s <= BUDGET
    assert max(Counter(event.key for event in run.events).values()) == 1
    for one in run.events:
        row = ROWS[one.key]
        assert (one.kind == "dead") == (row.cause is not None)
        full_s = row.start_s + (0 if row.cause else WARM_UP_S + row.load_s) + STOP_S
        assert one.ended_s - one.began_s == pytest.approx(full_s)


def test_a_peer_that_only_repeats_itself_gets_something_new_until_nothing_is_left() -> None:
    """The default is known too, and no point of the space."""
    method = PEERS["nsga2"](CASE, seed=2)
    known: dict[str, Measurement | None] = dict.fromkeys(ROWS)
    assert fresh(method, known) is None
    last = key_of(CASE.problem.space.decode(next(every_point(CASE.problem.space))))
    del known[last]
    found = fresh(method, known)
    assert found is not None and key_of(found) == last


@pytest.mark.timeout(60)
def test_vtune_in_virtual_time_begins_with_the_default_confirms_at_the_end_and_is_reproducible() -> None:
    run, again = (vtune(CASE, ROWS, seed=3, budget_gpu_s=BUDGET, parts=Parts()) for _ in range(2))
    assert run == again
    assert run.events[0].role == "default" and run.events[-1].role == "confirm"
    assert sum(one.gpu_s for one in run.events) <= BUDGET * 1.1
    assert run.said in ROWS


@pytest.mark.timeout(60)
def test_on_four_gpus_trials_run_at_once_and_never_on_more() -> None:
    case = next(case for case in CASES if case.devices == 4)
    rows = table.read(case)
    run = vtune(case, rows, seed=1, budget_gpu_s=budget_gpu_s(rows) / 4, parts=Parts())
    changes = sorted([(one.began_s, one.gpus) for one in run.events] + [(one.ended_s, -one.gpus) for one in run.events])
    held = most = 0
    for _, gpus in changes:
        held += gpus
        most = max(most, held)
    assert most == 4


def test_a_method_that_never_arrives_counts_the_whole_budget() -> None:
    base: dict[str, object] = {
        "seed": 0, "budget_gpu_s": 100.0, "worse": False, "regret": 0.0, "dead_gpu_s": 0.0, "busy_gpu_s": 1.0,
        "pruned": 0, "false_prunes": 0, "truly_best_prunes": 0, "saved_gpu_s": 0.0,
    }  # fmt: skip
    rows: list[dict[str, object]] = [
        base | {"problem": "p", "method": "vtune", "arrived_gpu_s": 10.0},
        base | {"problem": "p", "method": "tpe_restart", "arrived_gpu_s": None},
        base | {"problem": "p", "method": "random", "arrived_gpu_s": 40.0},
    ]
    found = dict(figures(rows))
    assert found["gpu_s_to_5pct_vs_tpe_restart"] == pytest.approx(0.1)
    assert found["gpu_s_to_5pct_vs_best_other"] == pytest.approx(0.25)
