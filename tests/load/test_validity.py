from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.load.validity import unusable
from autotune.spec.measurement import RequestRecord
from autotune.spec.workload import ClosedLoop, Poisson, Rung

RUNG = Rung(name="r", arrivals=ClosedLoop(concurrency=2), requests=20)
OPEN = replace(RUNG, arrivals=Poisson(rate_rps=10))
GOOD = RequestRecord(
    scheduled_s=1.0,
    sent_s=1.0,
    first_token_s=1.1,
    done_s=1.4,
    prompt_tokens=20,
    output_tokens=8,
    asked_prompt_tokens=20,
    asked_output_tokens=8,
)
LOST = replace(GOOD, first_token_s=None, done_s=None, error="HTTP 500: boom")


def only_reason(records: list[RequestRecord], rung: Rung = RUNG) -> str:
    [reason] = unusable(rung, records)
    return reason


def test_a_rung_with_every_request_answered_as_asked_is_usable() -> None:
    assert unusable(RUNG, [GOOD] * 20) == ()


def test_a_rung_by_duration_may_have_more_requests_than_it_must() -> None:
    assert unusable(RUNG, [GOOD] * 25) == ()


def test_missing_requests_are_named() -> None:
    assert only_reason([GOOD] * 19) == "19 requests were recorded, the rung sends 20"


def test_no_record_at_all_is_named() -> None:
    assert only_reason([]) == "no request was recorded"


def test_a_rung_in_which_nothing_finished_names_the_error() -> None:
    assert only_reason([LOST] * 20) == "none of 20 requests finished: HTTP 500: boom (20 times)"


def test_a_failure_in_twenty_is_the_configurations_own_affair() -> None:
    assert unusable(RUNG, [GOOD] * 19 + [LOST]) == ()


def test_more_failures_than_that_make_it_unusable() -> None:
    assert only_reason([GOOD] * 18 + [LOST] * 2) == "2 of 20 requests failed: HTTP 500: boom (2 times)"


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (replace(GOOD, first_token_s=None), "finished without a token"),
        (replace(GOOD, done_s=None), "finished without a token"),
        (replace(GOOD, done_s=float("nan")), "times"),
        (replace(GOOD, first_token_s=0.9), "out of order"),
        (replace(GOOD, done_s=1.05), "out of order"),
        (replace(GOOD, sent_s=0.9), "out of order"),
        (replace(GOOD, cached_tokens=21), "21 of 20 prompt tokens"),
        (replace(GOOD, output_tokens=7), "7 output tokens instead of 8"),
        (replace(GOOD, prompt_tokens=21), "21 prompt tokens instead of 20"),
        (replace(GOOD, output_tokens=None), "didn't count"),
    ],
)
def test_values_that_cannot_be_true_are_named(broken: RequestRecord, words: str) -> None:
    assert words in only_reason([GOOD] * 19 + [broken])


def test_a_client_that_sends_late_makes_an_open_loop_unusable() -> None:
    late = replace(GOOD, scheduled_s=0.5)
    assert "p99 of sent minus scheduled is 500 ms" in only_reason([GOOD] * 10 + [late] * 10, OPEN)


def test_a_closed_loop_has_no_lateness() -> None:
    assert unusable(RUNG, [replace(GOOD, scheduled_s=0.5)] * 20) == ()
