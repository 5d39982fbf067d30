"""Who survived the stress at the end of a confirmation, and what that does to the conclusion."""

from __future__ import annotations

from dataclasses import replace

import pytest
from repeated_runs import LIMIT, OBJECTIVES, THROUGHPUT, config, run

from autotune.history.record import TrialRecord
from autotune.search.conclusion import Conclusion, conclude
from autotune.search.confirmation import contenders
from autotune.search.survival import fallen, survival
from autotune.spec.measurement import Measurement
from autotune.spec.verdict import Broken, Infeasible
from autotune.spec.workload import STRESS

DEFAULT = run(0, "default", {}, 1000.0)


def stress(*, requests: int = 80, finished: int = 80, complete: bool = True) -> Measurement:
    return Measurement(
        rung=STRESS,
        complete=complete,
        duration_s=5.0,
        requests=requests,
        finished=finished,
        failed=requests - finished,
        gpus=1,
        concurrency=40,
        kv_cache_usage_max=0.97,
        preemptions=3,
    )


def stressed(record: TrialRecord, *, lost: int = 0) -> TrialRecord:
    return replace(record, measurements=(*record.measurements, stress(finished=80 - lost)))


def killed(record: TrialRecord, *, in_stress: bool = True) -> TrialRecord:
    shown = record.measurement if in_stress else None
    verdict = Infeasible(cause="oom.runtime", evidence="CUDA out of memory", measurement=shown)
    seen = (stress(requests=30, finished=10, complete=False),) if in_stress else ()
    return replace(record, verdict=verdict, measurements=(*record.measurements, *seen) if in_stress else ())


def confirmed(*arms: tuple[dict[str, int], float, str]) -> list[TrialRecord]:
    """Three blocks of each arm (flags, tok/s, and what became of its last run), 1 % apart."""
    searched = [flags for flags, _, _ in arms if flags]
    records = [DEFAULT, *(run(1 + n, "search", flags, 1300.0) for n, flags in enumerate(searched))]
    for block, factor in enumerate((0.99, 1.0, 1.01)):
        for flags, tok_per_s, fate in arms:
            record = run(len(records), "confirm", flags, tok_per_s * factor)
            if block == 2:
                match fate:
                    case "survives":
                        record = stressed(record)
                    case "loses":
                        record = stressed(record, lost=2)
                    case "dies":
                        record = killed(record)
            records.append(record)
    return records


def concluded(*arms: tuple[dict[str, int], float, str]) -> Conclusion:
    found = conclude(confirmed(*arms), OBJECTIVES, ())
    assert found is not None
    return found


def test_all_answered_by_a_living_engine_is_survival() -> None:
    seen = survival([run(1, "confirm", {"a": 1}, 1.0), stressed(run(2, "confirm", {"a": 1}, 1.0))])
    assert seen is not None
    assert (seen.survived, seen.unanswered, seen.died_of) == (True, 0, None)
    assert seen.measurement is not None
    assert (seen.measurement.preemptions, seen.measurement.kv_cache_usage_max) == (3, 0.97)


def test_one_lost_request_is_none() -> None:
    seen = survival([stressed(run(1, "confirm", {"a": 1}, 1.0), lost=1)])
    assert seen is not None
    assert (seen.survived, seen.unanswered) == (False, 1)


def test_the_worst_that_was_seen_counts() -> None:
    runs = [killed(run(1, "confirm", {"a": 1}, 1.0)), stressed(run(2, "confirm", {"a": 1}, 1.0))]
    for order in (runs, runs[::-1]):
        seen = survival(order)
        assert seen is not None
        assert seen.died_of == "oom.runtime"


def test_an_engine_that_dies_in_any_run_of_the_confirmation_has_not_survived() -> None:
    seen = survival([killed(run(1, "confirm", {"a": 1}, 1.0), in_stress=False)])
    assert seen is not None
    assert (seen.survived, seen.measurement) == (False, None)


def test_what_the_harness_broke_says_nothing() -> None:
    record = stressed(run(1, "confirm", {"a": 1}, 1.0), lost=40)
    assert survival([replace(record, verdict=Broken(error="node lost"))]) is None
    assert survival([run(1, "confirm", {"a": 1}, 1.0)]) is None


# ---------------------------------------------------------------- the conclusion


def test_a_better_finalist_that_survives_wins() -> None:
    found = concluded(({}, 1000.0, "survives"), ({"a": 1}, 1200.0, "survives"))
    assert (found.decision, found.fallen) == ("better", ())


@pytest.mark.parametrize("fate", ["dies", "loses"])
def test_a_better_finalist_that_does_not_survive_leaves_the_default(fate: str) -> None:
    found = concluded(({}, 1000.0, "survives"), ({"a": 1}, 1200.0, fate))
    assert (found.decision, found.winner) == ("keep the default", None)
    assert [finalist.config for finalist in found.fallen] == [config({"a": 1})]


def test_the_next_finalist_that_is_better_and_survives_wins_instead() -> None:
    found = concluded(({}, 1000.0, "survives"), ({"a": 1}, 1300.0, "dies"), ({"a": 2}, 1200.0, "survives"))
    assert found.decision == "better"
    assert found.winner is not None
    assert found.winner.config == config({"a": 2})
    assert [finalist.config for finalist in found.fallen] == [config({"a": 1})]


def test_where_the_next_one_may_be_better_there_is_no_clear_winner() -> None:
    found = concluded(({}, 1000.0, "survives"), ({"a": 1}, 1300.0, "dies"), ({"a": 2}, 1005.0, "survives"))
    assert (found.decision, found.winner) == ("no clear winner", None)


def test_what_was_measured_before_the_engine_died_counts() -> None:
    found = concluded(({}, 1000.0, "survives"), ({"a": 1}, 1200.0, "dies"))
    assert found.finalists[0].runs == 3
    assert found.finalists[0].gains[THROUGHPUT.metric].gain == pytest.approx(0.2)


def test_a_default_that_does_not_survive_keeps_nobody_from_winning() -> None:
    found = concluded(({}, 1000.0, "dies"), ({"a": 1}, 1200.0, "survives"))
    assert found.decision == "better"
    assert found.baseline_stress is not None
    assert not found.baseline_stress.survived


def test_a_confirmation_without_stress_is_concluded_as_before() -> None:
    found = concluded(({}, 1000.0, "none"), ({"a": 1}, 1200.0, "none"))
    assert found.decision == "better"
    assert found.finalists[0].stress is None


def test_who_did_not_survive_is_no_contender_when_the_search_goes_on() -> None:
    records = confirmed(({}, 1000.0, "survives"), ({"a": 1}, 1200.0, "dies"))
    records += [run(len(records), "search", {"a": 2}, 1290.0)]
    assert fallen(records) == {config({"a": 1}).key}
    assert contenders(records, THROUGHPUT, (LIMIT,), cv=0.05) == (config({"a": 2}),)
