from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import LATENCY, OBJECTIVES, THROUGHPUT, TTFT_SLO, measured, record, under_stress

from autotune.history.record import TrialRecord
from autotune.report.gain import gains
from autotune.report.outcome import KeepBaseline, NoneMeetsSlos, NothingValid, Switch, outcome, sentence, trade_off
from autotune.report.summary import summarise
from autotune.report.tried import pooled
from autotune.spec.objective import Slo
from autotune.spec.verdict import Broken, Dominated, Infeasible, Invalid, Measured

DEFAULT = measured(0, 1000.0, 50.0, role="default")


def test_a_better_candidate_is_recommended_and_called_unconfirmed() -> None:
    summary = summarise([DEFAULT, measured(1, 1500.0, 80.0, {"max-num-seqs": 256})], OBJECTIVES, [TTFT_SLO])
    assert isinstance(outcome(summary), Switch)
    assert "+50.0 %" in sentence(summary)
    assert "One run each, not yet confirmed" in sentence(summary)


def test_gains_are_given_for_every_objective_with_positive_as_better() -> None:
    summary = summarise([DEFAULT, measured(1, 1500.0, 80.0, {"max-num-seqs": 256})], OBJECTIVES)
    assert {gain.objective.metric: round(gain.value, 3) for gain in summary.gains} == {
        "output_tok_per_s_per_gpu": 0.5,
        "ttft_p99_ms": -0.6,
    }


def test_the_default_is_kept_when_nothing_beats_it() -> None:
    summary = summarise([DEFAULT, measured(1, 900.0, 60.0, {"max-num-seqs": 4})], OBJECTIVES)
    assert outcome(summary) == KeepBaseline(baseline=pooled([DEFAULT])[0])
    assert sentence(summary).startswith("Keep the default")


def test_the_fastest_is_not_best_when_it_breaks_an_slo() -> None:
    fast, slower = measured(1, 2000.0, 500.0, {"a": 1}), measured(2, 1200.0, 90.0, {"a": 2})
    summary = summarise([DEFAULT, fast, slower], OBJECTIVES, [TTFT_SLO])
    assert summary.best is not None
    assert summary.best.trial == 2


def test_a_trial_that_lost_requests_is_neither_best_nor_on_the_front() -> None:
    summary = summarise([DEFAULT, measured(1, 9000.0, 10.0, {"a": 1}, failed=1)], OBJECTIVES)
    assert summary.best is not None
    assert summary.best.trial == 0
    assert [tried.trial for tried in summary.front] == [0]


def test_a_candidate_that_meets_slos_which_the_default_misses_wins_although_slower() -> None:
    summary = summarise(
        [DEFAULT, measured(1, 800.0, 20.0, {"a": 1})], OBJECTIVES, [Slo(metric="ttft_p99_ms", limit=30.0)]
    )
    decided = outcome(summary)
    assert isinstance(decided, Switch)
    assert decided.rescues
    assert "it meets the SLOs, which the default does not" in sentence(summary)


def test_when_none_meets_the_slos_the_closest_is_named_with_what_it_misses() -> None:
    tight = Slo(metric="ttft_p99_ms", limit=10.0)
    summary = summarise([DEFAULT, measured(1, 800.0, 20.0, {"a": 1})], OBJECTIVES, [tight])
    decided = outcome(summary)
    assert isinstance(decided, NoneMeetsSlos)
    assert decided.closest.trial == 1
    assert "ttft_p99_ms <= 10 is missed by 100 %" in sentence(summary)


def test_an_slo_that_was_not_measured_is_not_met() -> None:
    summary = summarise([DEFAULT], OBJECTIVES, [Slo(metric="tpot_p99_ms", limit=1e9)])
    assert summary.best is None
    assert "was not measured" in sentence(summary)


def test_without_a_valid_trial_nothing_is_recommended() -> None:
    summary = summarise([record(0, Broken(error="killed"), role="default")], OBJECTIVES)
    assert outcome(summary) == NothingValid(trials=1)


def test_where_the_default_cannot_start_gains_are_stated_against_the_incumbent() -> None:
    failed = record(0, Infeasible(cause="capacity.kv_too_small", evidence="no room"), role="default")
    incumbent = measured(1, 1000.0, 50.0, {"a": 1}, role="incumbent")
    summary = summarise([failed, incumbent, measured(2, 1100.0, 50.0, {"a": 2})], OBJECTIVES)
    assert summary.baseline is summary.incumbent
    assert summary.default_failure == "infeasible: capacity.kv_too_small (no room)"
    assert "against the incumbent" in sentence(summary)


def test_a_gain_inside_the_noise_of_the_repeated_baseline_keeps_the_default() -> None:
    repeats = [measured(n, value, 50.0, role="baseline") for n, value in ((2, 900.0), (3, 1100.0))]
    summary = summarise([DEFAULT, *repeats, measured(4, 1050.0, 50.0, {"a": 1})], OBJECTIVES)
    assert summary.gains[0].standing == "within noise"
    assert "inside the run-to-run noise" in sentence(summary)


def test_a_gain_far_outside_the_noise_is_called_better() -> None:
    repeats = [measured(n, value, 50.0, role="baseline") for n, value in ((2, 995.0), (3, 1005.0), (4, 1002.0))]
    summary = summarise([DEFAULT, *repeats, measured(5, 1500.0, 50.0, {"a": 1})], OBJECTIVES)
    assert summary.gains[0].standing == "better"
    assert "unconfirmed" not in sentence(summary)


def test_repeats_of_one_configuration_are_pooled_whatever_the_order_of_its_flags() -> None:
    tried = pooled([measured(1, 10.0, 1.0, {"a": 1, "b": 2}), measured(2, 20.0, 1.0, {"b": 2, "a": 1})])
    assert [(t.trial, len(t.runs), t.mean("output_tok_per_s_per_gpu")) for t in tried] == [(1, 2, 15.0)]


def test_a_retried_trial_counts_once_by_its_last_attempt_and_pays_for_both() -> None:
    summary = summarise(
        [
            record(0, Broken(error="lost", cause="infra.gpu_busy"), role="default"),
            record(0, DEFAULT.verdict, role="default", attempt=2),
        ],
        OBJECTIVES,
    )
    assert dict(summary.verdicts) == {"measured": 1}
    assert summary.spending.total_gpu_s == pytest.approx(27.0)


def test_failures_are_grouped_by_cause_with_the_first_evidence() -> None:
    oom = [record(n, Infeasible(cause="oom", evidence=f"line {n}"), {"a": n}) for n in (1, 2)]
    summary = summarise([DEFAULT, *oom, record(3, Invalid(reasons=("too few requests",)), {"a": 3})], OBJECTIVES)
    assert [(f.verdict, f.cause, f.trials, f.evidence) for f in summary.failures] == [
        ("infeasible", "oom", (1, 2), "line 1"),
        ("invalid", "too few requests", (3,), ""),
    ]


def test_a_dominated_trial_is_counted_but_neither_failure_nor_candidate() -> None:
    assert DEFAULT.measurement is not None
    stopped = Dominated(by=(0,), measurement=DEFAULT.measurement)
    summary = summarise([DEFAULT, record(1, stopped, {"a": 1})], OBJECTIVES)
    assert summary.failures == ()
    assert len(summary.tried) == 1


def test_every_gpu_second_is_booked_once() -> None:
    summary = summarise([DEFAULT, record(1, Broken(error="x"), {"tensor-parallel-size": 2})], OBJECTIVES)
    assert sum(summary.spending.by_use.values()) == pytest.approx(summary.spending.total_gpu_s)
    assert sum(summary.spending.by_verdict.values()) == pytest.approx(summary.spending.total_gpu_s)


def test_another_point_of_the_front_is_named_where_it_is_better_in_a_later_objective() -> None:
    summary = summarise([DEFAULT, measured(1, 1500.0, 80.0, {"a": 1})], OBJECTIVES)
    assert trade_off(summary) == ("Best in ttft_p99_ms: trial 0, 50 against 80 (+37.5 %).",)


def test_the_best_is_also_known_for_each_slo_alone() -> None:
    fast = measured(1, 2000.0, 500.0, {"a": 1})
    throughput = Slo(metric="output_tok_per_s_per_gpu", limit=1500.0, at_least=True)
    summary = summarise([DEFAULT, fast], OBJECTIVES, [TTFT_SLO, throughput])
    assert summary.best is None
    assert [(slo.metric, tried.trial if tried else None) for slo, tried in summary.best_by_slo] == [
        ("ttft_p99_ms", 0),
        ("output_tok_per_s_per_gpu", 1),
    ]


positive = st.floats(min_value=1e-3, max_value=1e6)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=12))
def test_the_best_by_the_first_objective_is_never_worse_than_the_default(values: list[tuple[float, float]]) -> None:
    records = [DEFAULT, *(measured(n, a, b, {"a": n}) for n, (a, b) in enumerate(values, start=1))]
    summary = summarise(records, OBJECTIVES)
    assert summary.gains[0].value >= 0


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=12), st.randoms())
def test_the_order_in_which_records_are_read_changes_nothing(values: list[tuple[float, float]], random: object) -> None:
    records = [DEFAULT, *(measured(n, a, b, {"a": n}) for n, (a, b) in enumerate(values, start=1))]
    shuffled = list(records)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert summarise(shuffled, OBJECTIVES) == summarise(records, OBJECTIVES)


@given(positive, positive)
def test_a_gain_has_the_sign_of_the_improvement_in_either_direction(new: float, old: float) -> None:
    candidate, baseline = pooled([measured(1, new, new, {"a": 1}), measured(0, old, old)])
    up, down = gains(candidate, baseline, [THROUGHPUT, LATENCY])
    assert (up.value > 0) == (new / old > 1)
    assert (down.value > 0) == (new / old < 1)


def test_a_measured_verdict_is_what_pools_build_on() -> None:
    assert all(isinstance(run.verdict, Measured) for tried in pooled([DEFAULT]) for run in tried.runs)


# ---------------------------------------------------------------- after a confirmation


def confirmed(candidate: float, *, ttft: float = 50.0, default: float = 1000.0) -> list[TrialRecord]:
    """A search whose candidate looked 50 % better, then three runs of both, 1 % apart."""
    records = [DEFAULT, measured(1, 1500.0, 50.0, {"a": 1})]
    for factor in (0.99, 1.0, 1.01):
        records.append(measured(len(records), default * factor, 50.0 * factor, role="confirm"))
        records.append(measured(len(records), candidate * factor, ttft * factor, {"a": 1}, role="confirm"))
    return records


def test_a_confirmed_gain_replaces_what_single_runs_had_promised() -> None:
    summary = summarise(confirmed(1200.0), OBJECTIVES)
    decided = outcome(summary)
    assert isinstance(decided, Switch)
    assert decided.gain is not None
    assert decided.gain.value == pytest.approx(0.2)
    assert decided.gain.shrinkage == pytest.approx(-0.3, abs=0.001)
    assert "Confirmed by 3 runs of it and 3 of the baseline; single runs had promised +50.0 %" in sentence(summary)
    assert "unconfirmed" not in sentence(summary)


def test_after_a_confirmation_a_configuration_is_shown_with_its_confirmed_values() -> None:
    summary = summarise(confirmed(1200.0), OBJECTIVES)
    assert summary.best is not None
    assert summary.best.mean("output_tok_per_s_per_gpu") == pytest.approx(1200.0)
    assert (summary.best.trial, summary.trials, summary.repeats) == (1, 2, 6)


def test_what_a_confirmation_can_not_tell_apart_has_no_clear_winner_and_keeps_the_default() -> None:
    summary = summarise(confirmed(1005.0), OBJECTIVES)
    decided = outcome(summary)
    assert isinstance(decided, KeepBaseline)
    assert decided.no_clear_winner
    assert sentence(summary).startswith("No clear winner: keep the default.")
    assert summary.best is summary.default


def test_a_finalist_that_lost_its_limit_when_run_again_is_not_recommended() -> None:
    summary = summarise(confirmed(1500.0, ttft=150.0), OBJECTIVES, [TTFT_SLO])
    assert sentence(summary).startswith("Keep the default.")
    assert summary.best is summary.default


def test_gains_are_those_of_the_best_also_where_neither_it_nor_the_default_is_sure_of_its_limit() -> None:
    noisy = [DEFAULT, measured(1, 1500.0, 50.0, {"a": 1})]
    for factor in (0.7, 1.0, 1.4):
        noisy.append(measured(len(noisy), 1000.0, 105.0 * factor, role="confirm"))
        noisy.append(measured(len(noisy), 900.0, 90.0 * factor, {"a": 1}, role="confirm"))
    summary = summarise(noisy, OBJECTIVES, [TTFT_SLO])
    assert summary.best is not None
    assert summary.best.trial == 1
    assert summary.gains[0].value == pytest.approx(-0.1)


def test_a_better_finalist_whose_engine_died_under_stress_leaves_the_default_and_is_said_so() -> None:
    *records, default, candidate = confirmed(1200.0)
    records += [under_stress(default), under_stress(candidate, died_of="oom.runtime")]
    summary = summarise(records, OBJECTIVES)
    assert isinstance(outcome(summary), KeepBaseline)
    assert summary.best is summary.default
    assert sentence(summary) == (
        "Keep the default. Trial 1 was better (+20.0 % in output_tok_per_s_per_gpu), but its engine died of "
        "oom.runtime under peak load: 40 requests at once."
    )


def test_the_next_finalist_that_survived_is_recommended_and_the_fallen_one_named() -> None:
    *records, default, fast = confirmed(1300.0)
    records += [under_stress(default), under_stress(fast, lost=2)]
    second = [measured(20 + n, 1200.0 * f, 50.0, {"a": 2}, role="confirm") for n, f in enumerate((0.99, 1.0, 1.01))]
    second[-1] = under_stress(second[-1])
    summary = summarise(
        [*_moved(records[2:], 10), *records[:2], measured(2, 1290.0, 50.0, {"a": 2}), *second], OBJECTIVES
    )
    assert summary.best is not None
    assert summary.best.trial == 2
    assert sentence(summary).startswith("Trial 2: +20.0 %")
    assert sentence(summary).endswith(
        "Trial 1 was better (+30.0 % in output_tok_per_s_per_gpu), but it left 2 requests unanswered under peak load: "
        "40 requests at once."
    )


def test_a_default_that_does_not_survive_is_named_beside_the_winner() -> None:
    *records, default, candidate = confirmed(1200.0)
    records += [under_stress(default, died_of="oom.runtime"), under_stress(candidate)]
    summary = summarise(records, OBJECTIVES)
    assert isinstance(outcome(summary), Switch)
    assert sentence(summary).endswith(
        "The default itself did not survive: its engine died of oom.runtime under peak load: 40 requests at once."
    )


def test_a_winner_that_was_not_put_under_stress_is_called_untested() -> None:
    assert sentence(summarise(confirmed(1200.0), OBJECTIVES)).endswith("Whether it survives peak load was not tested.")


def test_what_died_under_stress_is_not_the_best_under_other_limits_either() -> None:
    *records, default, candidate = confirmed(1200.0)
    records += [under_stress(default), under_stress(candidate, died_of="oom.runtime")]
    summary = summarise(records, OBJECTIVES, use_confirmation=False)
    assert summary.best is summary.default


def test_limits_that_the_finalists_were_not_chosen_by_leave_the_confirmation_aside() -> None:
    assert summarise(confirmed(1200.0), OBJECTIVES, use_confirmation=False).confirmation is None


def test_what_noise_may_have_kept_off_the_front_is_named() -> None:
    close, far = measured(8, 1195.0, 51.0, {"b": 1}), measured(9, 600.0, 90.0, {"b": 2})
    summary = summarise([*confirmed(1200.0)[:2], close, far, *_moved(confirmed(1200.0)[2:], 10)], OBJECTIVES)
    assert [tried.trial for tried in summary.near_front if tried.trial in (8, 9)] == [8]


def _moved(records: list[TrialRecord], by: int) -> list[TrialRecord]:
    return [replace(record, trial=record.trial + by) for record in records]
