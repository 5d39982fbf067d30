from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from search_problems import LATENCY, SERVING, SLO, THROUGHPUT, measurement

from autotune.search.design import random_points
from autotune.search.dominance import front
from autotune.search.known import MOST, Knowledge, Known
from autotune.spec.verdict import Broken, Dominated, Infeasible, Invalid, Measured

OBJECTIVES = (THROUGHPUT, LATENCY)
SEEN = measurement(output_tok_per_s_per_gpu=100.0, ttft_p99_ms=50.0)


def known(throughput: float, ttft: float, *, ran: bool = True) -> Known:
    values = {THROUGHPUT.metric: throughput, LATENCY.metric: ttft} if ran else {}
    return Known(point={"max-num-seqs": 8}, ran=ran, values=values)


def knowledge(*items: Known) -> Knowledge:
    grown = Knowledge(SERVING, OBJECTIVES, (SLO,))
    for item in items:
        grown.add(item)
    return grown


def test_only_verdicts_on_the_configuration_are_knowledge() -> None:
    seen = [
        Known.of({}, verdict, OBJECTIVES, (SLO,))
        for verdict in (
            Measured(measurement=SEEN),
            Dominated(by=(0,), measurement=SEEN),
            Infeasible(cause="x", evidence=""),
        )
    ]
    assert [(k.ran, k.complete, len(k.values)) for k in seen if k] == [
        (True, True, 2),
        (True, False, 2),
        (False, True, 0),
    ]
    assert Known.of({}, Invalid(reasons=()), OBJECTIVES, ()) is None
    assert Known.of({}, Broken(error=""), OBJECTIVES, ()) is None


def test_it_comes_back_from_json_as_it_was() -> None:
    one = Known(point={"max-num-seqs": 8}, ran=True, values={"ttft_p99_ms": 1.5}, complete=False, lost=True)
    assert Known.read(one.point, json.loads(json.dumps(one.form()))) == one


def test_a_metric_that_was_not_measured_is_missing_and_not_zero() -> None:
    one = Known.of({}, Measured(measurement=measurement(ttft_p99_ms=5.0)), OBJECTIVES, ())
    assert one is not None and one.values == {"ttft_p99_ms": 5.0} and one.losses(OBJECTIVES) is None


def test_what_keeps_the_limits_is_the_front_where_there_is_any() -> None:
    slow, fast = known(500.0, 900.0), known(100.0, 50.0)
    assert knowledge(slow).front == [slow]
    assert knowledge(slow, fast).front == [fast]


@given(st.lists(st.tuples(st.floats(1, 9), st.floats(1, 99)), max_size=30))
def test_the_front_grown_one_by_one_is_the_front_of_all(values: list[tuple[float, float]]) -> None:
    items = [known(*value) for value in values]
    expected = front([(-throughput, ttft) for throughput, ttft in values])
    assert {id(item) for item in knowledge(*items).front} == {id(items[index]) for index in expected}


def test_a_view_is_bounded_and_has_the_front_the_nearest_failures_and_the_latest() -> None:
    source = random_points(SERVING, seed=1, stream=1)
    best = Known(point=next(source), ran=True, values={THROUGHPUT.metric: 1e6, LATENCY.metric: 1.0})
    near = Known(point=best.point, ran=False)
    others = [
        Known(point=next(source), ran=False)
        if index % 3 == 0
        else Known(point=next(source), ran=True, values={THROUGHPUT.metric: 1.0 + index, LATENCY.metric: 100.0})
        for index in range(2000)
    ]
    grown = knowledge(best, near, *others)
    ran, failed = grown.view()
    assert len(ran) + len(failed) == MOST
    assert any(item is best for item in ran) and any(item is near for item in failed)
    assert ran[-1] is grown.ran[-1]
    assert [item for item in grown.ran if any(item is other for other in ran)] == ran


def test_a_short_history_is_seen_whole() -> None:
    grown = knowledge(*(known(1.0, 1.0, ran=index % 2 == 0) for index in range(40)))
    assert grown.view() == (grown.ran, grown.failed)
