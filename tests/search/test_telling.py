from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_problems import LATENCY, THROUGHPUT, measurement

from autotune.search.telling import RULE_BROKEN, Told, told
from autotune.spec.objective import Slo
from autotune.spec.verdict import Broken, Dominated, Infeasible, Invalid, Measured, Verdict

TTFT = Slo(metric="ttft_p99_ms", limit=100.0)
TPOT = Slo(metric="tpot_p99_ms", limit=10.0)
GOODPUT = Slo(metric="goodput_rps", limit=4.0, at_least=True)
SLOS = (TTFT, TPOT, GOODPUT)


def tell(verdict: Verdict, slos: tuple[Slo, ...] = SLOS) -> Told:
    return told(verdict, (THROUGHPUT, LATENCY), slos)


def total(outcome: Told) -> float:
    """What TPE ranks by."""
    return sum(value for value in outcome.constraints.values() if value > 0)


def test_a_measured_trial_is_complete_with_its_values_in_the_order_of_the_objectives() -> None:
    outcome = tell(Measured(measurement=measurement(output_tok_per_s_per_gpu=900.0, ttft_p99_ms=50.0)))
    assert (outcome.state, outcome.values) == ("complete", (900.0, 50.0))


def test_a_violated_limit_is_scaled_and_shared_and_a_met_one_is_not_positive() -> None:
    seen = measurement(output_tok_per_s_per_gpu=1.0, ttft_p99_ms=200.0, tpot_p99_ms=5.0, goodput_rps=1.0)
    assert tell(Measured(measurement=seen)).constraints == {
        "ttft_p99_ms <= 100": pytest.approx(1 / 2 / 3),  # v = 1
        "tpot_p99_ms <= 10": -0.5,
        "goodput_rps >= 4": pytest.approx(0.75 / 1.75 / 3),
        "failed": 0.0,
    }


def test_a_measured_trial_without_an_objective_is_no_evidence() -> None:
    assert tell(Measured(measurement=measurement(output_tok_per_s_per_gpu=1.0))).state == "fail"
    seen = measurement(output_tok_per_s_per_gpu=math.inf, ttft_p99_ms=1.0)
    assert tell(Measured(measurement=seen)).state == "fail"


def test_an_infeasible_trial_is_pruned_with_one_constraint_that_grows_with_the_shortfall() -> None:
    outcome = tell(Infeasible(cause="oom.weights", evidence="", shortfall=0.25))
    assert (outcome.state, outcome.constraints) == ("pruned", {"feasible": 1.25})


@pytest.mark.parametrize(("shortfall", "expected"), [(math.nan, 1.0), (-3.0, 1.0), (7.0, 2.0)])
def test_a_nonsensical_shortfall_is_brought_into_range(shortfall: float, expected: float) -> None:
    assert tell(Infeasible(cause="x", evidence="", shortfall=shortfall)).constraints["feasible"] == expected


def test_a_dominated_trial_is_pruned_with_the_limits_seen_so_far() -> None:
    outcome = tell(Dominated(by=(1, 2), measurement=measurement(ttft_p99_ms=200.0)))
    assert (outcome.state, set(outcome.constraints)) == ("pruned", {"ttft_p99_ms <= 100", "failed"})


@pytest.mark.parametrize("verdict", [Invalid(reasons=("few", "late")), Broken(error="node lost")])
def test_what_is_no_evidence_is_told_as_fail_without_constraints(verdict: Verdict) -> None:
    outcome = tell(verdict)
    assert (outcome.state, outcome.constraints, outcome.why) in [("fail", {}, "few; late"), ("fail", {}, "node lost")]


def test_lost_requests_break_the_limits_even_when_every_latency_is_met() -> None:
    seen = measurement(output_tok_per_s_per_gpu=1.0, ttft_p99_ms=1.0, finished=60, failed=40)
    assert total(tell(Measured(measurement=seen), slos=())) > 0


value = st.one_of(st.none(), st.floats(0, 1e9))


@given(value, value, value, st.integers(0, 100), st.integers(0, 100), st.floats(0, 1))
def test_whatever_ran_ranks_above_whatever_did_not(
    ttft: float | None, tpot: float | None, goodput: float | None, finished: int, failed: int, shortfall: float
) -> None:
    seen = measurement(
        output_tok_per_s_per_gpu=1.0,
        ttft_p99_ms=ttft,
        tpot_p99_ms=tpot,
        goodput_rps=goodput,
        finished=finished,
        failed=failed,
    )
    couldnt = total(tell(Infeasible(cause="x", evidence="", shortfall=shortfall)))
    assert total(tell(Measured(measurement=seen))) < 1 <= min(couldnt, total(RULE_BROKEN))
    assert total(tell(Dominated(by=(), measurement=seen))) < 1


@given(st.floats(100.1, 1e6), st.floats(1.01, 10))
def test_a_larger_violation_ranks_lower(ttft: float, factor: float) -> None:
    near, far = (
        tell(Measured(measurement=measurement(output_tok_per_s_per_gpu=1.0, ttft_p99_ms=t)), slos=(TTFT,))
        for t in (ttft, ttft * factor)
    )
    assert total(near) < total(far)
