from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from search_problems import (
    DEFAULTS,
    LATENCY,
    SERVING,
    THROUGHPUT,
    TINY,
    TOY,
    ask,
    measurement,
    problem,
    serving_verdict,
    suggestion,
    toy_verdict,
)

from autotune.errors import UserError
from autotune.search.points import effective_key
from autotune.search.study import SamplerName, SpaceExhausted, Study, Suggestion
from autotune.spec.config import EngineConfig
from autotune.spec.objective import Objective
from autotune.spec.problem import Problem
from autotune.spec.rules import Rule
from autotune.spec.verdict import Broken, Dominated, Infeasible, Invalid, Measured, Verdict

pytestmark = pytest.mark.timeout(30)

OK = Measured(measurement=measurement(output_tok_per_s_per_gpu=100.0, ttft_p99_ms=50.0))
NAMES: tuple[SamplerName, ...] = ("gp", "tpe", "nsga2", "random")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where there is such a folder: a journal syncs to disk at every step."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Study]:
    def open_it(what: Problem | None = None, *, sampler: SamplerName = "tpe", name: str = "study") -> Study:
        return Study.open(
            tmp_path / f"{name}.journal", what or problem(), sampler=sampler, defaults=DEFAULTS, study_name="s"
        )

    return open_it


def frozen(study: Study) -> list[optuna.trial.FrozenTrial]:
    return study._study.get_trials(deepcopy=False)


def last(study: Study) -> optuna.trial.FrozenTrial:
    return frozen(study)[-1]


def search(study: Study, count: int) -> list[Suggestion]:
    asked = []
    for _ in range(count):
        asked.append(ask(study))
        study.tell(asked[-1].number, serving_verdict(asked[-1].config, asked[-1].number))
    return asked


# ---------------------------------------------------------------- the first suggestions


def test_the_default_comes_first_the_incumbent_second_and_numbers_are_consecutive(opened: Callable[..., Study]) -> None:
    incumbent = EngineConfig(model="m", flags={"max-num-seqs": 64})
    asked = search(opened(problem(incumbent=incumbent)), 20)
    assert [a.number for a in asked] == list(range(20))
    assert [a.role for a in asked[:3]] == ["default", "incumbent", "search"]
    assert (asked[0].config, asked[1].config) == (SERVING.default(), incumbent)


def test_a_default_inside_the_space_is_told_as_its_point(opened: Callable[..., Study]) -> None:
    study = opened(problem(TINY))
    asked = ask(study)
    study.tell(0, OK)
    assert asked.point == {"enable-prefix-caching": True, "max-num-seqs": 128}
    assert last(study).params == asked.point
    assert asked.config.flags == {}


def test_a_default_outside_the_space_is_recorded_without_pretending_parameters(opened: Callable[..., Study]) -> None:
    space = replace(TINY, dimensions=TINY.dimensions[:1], fixed={"max-num-seqs": 7})
    outside = EngineConfig(model="m", flags={"max-num-seqs": 8})
    study = opened(problem(space, incumbent=outside))
    ask(study)
    ask(study)
    study.tell(1, OK)
    trial = last(study)
    assert (trial.params, trial.state.name, trial.values) == ({}, "COMPLETE", [100.0, 50.0])
    assert json.loads(trial.user_attrs["config"])["flags"] == {"max-num-seqs": 8}


def test_the_initial_design_does_not_depend_on_results(opened: Callable[..., Study]) -> None:
    good, bad = opened(name="a"), opened(name="b")
    for _ in range(13):
        one, other = ask(good), ask(bad)
        assert one == other
        good.tell(one.number, OK)
        bad.tell(other.number, Infeasible(cause="oom.weights", evidence=""))


# ---------------------------------------------------------------- replay


@pytest.mark.parametrize("sampler", NAMES)
def test_the_same_seed_and_verdicts_give_the_same_suggestions_also_when_reopened(
    opened: Callable[..., Study], sampler: SamplerName
) -> None:
    whole = search(opened(sampler=sampler, name="whole"), 30)
    parts = []
    for count in (3, 12, 6, 9):
        parts += search(opened(sampler=sampler, name="parts"), count)
    assert parts == whole


def test_suggestions_with_several_trials_running_replay_too(opened: Callable[..., Study]) -> None:
    def run(study: Study, reopen: Callable[[], Study] | None) -> list[Suggestion]:
        asked: list[Suggestion] = []
        for step in range(24):
            if reopen is not None and step == 15:
                study = reopen()
            asked.append(ask(study))
            if step >= 3:  # four at a time
                study.tell(step - 3, serving_verdict(asked[step - 3].config, step - 3))
        return asked

    straight = run(opened(name="a"), None)
    assert run(opened(name="b"), lambda: opened(name="b")) == straight


def test_another_seed_gives_other_suggestions(opened: Callable[..., Study]) -> None:
    one, other = (search(opened(problem(seed=seed), name=str(seed)), 6) for seed in (1, 2))
    assert [a.config for a in one[1:]] != [a.config for a in other[1:]]


REPLAY = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from search_problems import DEFAULTS, ask, problem, serving_verdict
from autotune.search.study import Study
study = Study.open(Path(sys.argv[2]), problem(), sampler="tpe", defaults=DEFAULTS, study_name="s")
for number in range(24):
    asked = ask(study)
    study.tell(number, serving_verdict(asked.config, number))
    print(asked.config.key)
"""


def test_another_process_with_another_hash_seed_suggests_the_same(tmp_path: Path) -> None:
    def run(hash_seed: int) -> str:
        words = [sys.executable, "-c", REPLAY, str(Path(__file__).parent), str(tmp_path / f"{hash_seed}.journal")]
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout

    assert run(1) == run(2) != ""


# ---------------------------------------------------------------- what is never suggested


@pytest.mark.parametrize("sampler", NAMES)
def test_no_suggestion_breaks_a_rule_is_refused_or_comes_twice(
    opened: Callable[..., Study], sampler: SamplerName
) -> None:
    study = opened(sampler=sampler)
    configs = []
    for number in range(40):
        asked = suggestion(study.ask(accept=lambda config: config.gpus == 1 or config.flags.get("block-size") == 32))
        study.tell(number, serving_verdict(asked.config, number))
        configs.append(asked.config)
    assert all(SERVING.broken_rule(config, DEFAULTS) is None for config in configs)
    assert all(config.gpus == 1 or config.flags["block-size"] == 32 for config in configs)
    assert len({effective_key(config, DEFAULTS) for config in configs}) == 40


@pytest.mark.parametrize("sampler", ["gp", "tpe", "random"])
def test_the_journal_has_what_was_launched_and_nothing_that_was_refused(
    opened: Callable[..., Study], sampler: SamplerName
) -> None:
    study = opened(problem(replace(SERVING, rules=(Rule(text="max-num-seqs < 20"),))), sampler=sampler)
    search(study, 20)
    assert [t.user_attrs["number"] for t in frozen(study)] == list(range(20))


@pytest.mark.parametrize("sampler", NAMES)
def test_a_finite_space_is_tried_completely_and_then_said_to_be_exhausted(
    opened: Callable[..., Study], sampler: SamplerName
) -> None:
    study = opened(problem(TINY), sampler=sampler)
    asked = search(study, 8)  # the default is one of the 8 points
    assert len({effective_key(a.config, DEFAULTS) for a in asked}) == 8
    assert study.ask() == SpaceExhausted(tried=8)
    assert study.next_number == 8


def test_a_space_that_is_refused_altogether_is_exhausted_after_the_default(opened: Callable[..., Study]) -> None:
    study = opened()
    search(study, 1)
    assert study.ask(accept=lambda config: False) == SpaceExhausted(tried=1)


# ---------------------------------------------------------------- repeats


@pytest.mark.parametrize("sampler", NAMES)
def test_repeats_take_numbers_of_their_own_and_change_no_suggestion_of_the_design(
    opened: Callable[..., Study], sampler: SamplerName
) -> None:
    plain, repeating = opened(sampler=sampler, name="plain"), opened(sampler=sampler, name="repeating")
    expected = search(plain, 5)
    asked = search(repeating, 2)
    again = repeating.repeat("baseline", asked[0].config)
    repeating.tell(again.number, OK)
    asked += search(repeating, 3)
    assert [a.config for a in asked] == [e.config for e in expected]
    assert [asked[0].number, asked[1].number, again.number, asked[2].number] == [0, 1, 2, 3]
    assert repeating.candidates == 5


def test_the_sampler_never_hears_of_a_repeat(opened: Callable[..., Study]) -> None:
    study = opened()
    (first,) = search(study, 1)
    study.tell(study.repeat("confirm", first.config).number, OK)
    assert [t.state.name for t in frozen(study)] == ["COMPLETE", "FAIL"]


def test_a_repeat_that_was_cut_short_is_taken_up_again_with_its_role_and_traffic(opened: Callable[..., Study]) -> None:
    study = opened()
    (first,) = search(study, 1)
    study.repeat("confirm", first.config, group=1)
    resumed = opened()
    assert resumed.roles == {0: "default", 1: "confirm"}
    assert resumed.abandon_running() == [1]
    again = resumed.retry(1)
    assert (again.role, again.group, again.config, again.attempt) == ("confirm", 1, first.config, 2)


def test_a_candidate_is_no_repeat(opened: Callable[..., Study]) -> None:
    with pytest.raises(ValueError, match="no role of repeats"):
        opened().repeat("search", EngineConfig(model="m"))


# ---------------------------------------------------------------- packing


@pytest.mark.parametrize("gpus", [1, 2])
def test_after_the_design_suggestions_mostly_need_the_number_of_gpus_asked_for(
    opened: Callable[..., Study], gpus: int
) -> None:
    study = opened()
    search(study, 13)
    found = 0
    for number in range(13, 25):
        asked = suggestion(study.ask(gpus=gpus))
        found += asked.config.gpus == gpus
        study.tell(number, serving_verdict(asked.config, number))
    assert found >= 8


def test_a_size_that_does_not_exist_gets_another_one(opened: Callable[..., Study]) -> None:
    study = opened()
    search(study, 13)
    assert suggestion(study.ask(gpus=3)).config.gpus in (1, 2)


def test_of_nsga2_suggestions_turned_down_for_their_size_are_closed_and_say_why(opened: Callable[..., Study]) -> None:
    study = opened(sampler="nsga2")
    search(study, 13)
    study.ask(gpus=3)
    assert study.running == [13]
    turned_down = [t for t in frozen(study) if t.state.name == "FAIL" and "GPUs" in str(t.user_attrs.get("why"))]
    assert turned_down
    assert [t.state.name for t in frozen(study)].count("RUNNING") == 1


# ---------------------------------------------------------------- telling


def test_verdicts_reach_optuna_in_the_state_that_each_is_told_in(opened: Callable[..., Study]) -> None:
    study = opened()
    verdicts: list[Verdict] = [
        OK,
        Infeasible(cause="oom.weights", evidence="", shortfall=0.5),
        Dominated(by=(0,), measurement=measurement(ttft_p99_ms=400.0)),
        Invalid(reasons=("few",)),
        Broken(error="node lost"),
        Measured(measurement=measurement(ttft_p99_ms=1.0)),
    ]
    for number, verdict in enumerate(verdicts):
        ask(study)
        study.tell(number, verdict)
    told = [(t.state.name, t.values) for t in frozen(study)]
    assert told == [("COMPLETE", [100.0, 50.0]), ("PRUNED", None), ("PRUNED", None), *[("FAIL", None)] * 3]
    assert [t.user_attrs["verdict"] for t in frozen(study)] == [
        "measured",
        "infeasible",
        "dominated",
        "invalid",
        "broken",
        "measured",
    ]
    assert frozen(study)[1].constraints == {"feasible": 1.5}
    assert frozen(study)[2].constraints["ttft_p99_ms <= 200"] == pytest.approx(0.5)


def test_a_number_is_told_once(opened: Callable[..., Study]) -> None:
    study = opened()
    ask(study)
    study.tell(0, OK)
    with pytest.raises(ValueError, match="told already"):
        study.tell(0, OK)


def test_a_trial_can_be_told_by_the_process_that_reopens_the_study(opened: Callable[..., Study]) -> None:
    ask(opened())
    again = opened()
    assert again.running == [0]
    again.tell(0, OK)
    assert (again.running, last(again).values) == ([], [100.0, 50.0])


# ---------------------------------------------------------------- resuming


def test_what_a_killed_driver_left_running_is_closed_and_can_be_tried_again(opened: Callable[..., Study]) -> None:
    study = opened()
    asked = [ask(study) for _ in range(3)]
    study.tell(1, OK)
    again = opened()
    assert again.abandon_running() == [0, 2]
    assert again.running == []
    assert again.retry(2) == replace(asked[2], attempt=2)
    assert again.retry(0) == replace(asked[0], attempt=2)
    assert again.next_number == 3


def test_a_retried_trial_takes_its_verdict_under_the_same_number(opened: Callable[..., Study]) -> None:
    study = opened()
    ask(study)
    study.tell(0, Broken(error="node lost"))
    study.retry(0)
    study.tell(0, OK)
    assert ([t.state.name for t in frozen(study)], study.next_number) == (["FAIL", "COMPLETE"], 1)


def test_half_a_line_left_by_a_killed_writer_does_not_lose_the_study(
    opened: Callable[..., Study], tmp_path: Path
) -> None:
    search(opened(), 5)
    journal = tmp_path / "study.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code":8,"tri')
    again = opened()
    assert again.next_number == 5
    search(again, 2)
    assert opened().next_number == 7


def test_a_journal_that_is_no_journal_is_an_error_that_names_it(opened: Callable[..., Study], tmp_path: Path) -> None:
    (tmp_path / "study.journal").write_text("hello\nworld\n")
    with pytest.raises(UserError, match=r"study\.journal"):
        opened()


def test_other_objectives_than_the_journals_are_an_error(opened: Callable[..., Study]) -> None:
    opened()
    with pytest.raises(UserError, match="other objectives"):
        opened(problem(objectives=(LATENCY, THROUGHPUT)))


def test_the_journal_is_one_that_optuna_opens(opened: Callable[..., Study], tmp_path: Path) -> None:
    search(opened(), 8)
    copy = tmp_path / "copy.journal"
    shutil.copy(tmp_path / "study.journal", copy)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(copy)))
    study = optuna.load_study(study_name="s", storage=storage)
    assert study.metric_names == [THROUGHPUT.metric, LATENCY.metric]
    assert [d.name for d in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert study.best_trials


# ---------------------------------------------------------------- learning


@pytest.mark.parametrize("objectives", [(THROUGHPUT,), (THROUGHPUT, LATENCY)])
def test_a_toy_with_a_forbidden_zone_is_solved_with_few_attempts_inside_it(
    opened: Callable[..., Study], objectives: tuple[Objective, ...]
) -> None:
    shares, bests = [], []
    for seed in range(2):
        study = opened(problem(TOY, objectives=objectives, slos=(), seed=seed), name=str(seed))
        verdicts = []
        for number in range(61):
            verdicts.append(toy_verdict(ask(study).config, number))
            study.tell(number, verdicts[-1])
        shares.append(sum(isinstance(v, Infeasible) for v in verdicts[21:]) / 40)
        bests.append(max(v.measurement.output_tok_per_s_per_gpu or 0 for v in verdicts if isinstance(v, Measured)))
    assert sum(shares) / 2 <= 0.15
    assert sum(bests) / 2 >= 0.62 * 0.97


def test_a_repeat_teaches_the_sampler_only_that_its_engine_died(opened: Callable[..., Study]) -> None:
    study = opened()
    asked = search(study, 4)
    before = len(frozen(study))
    study.tell(study.repeat("confirm", asked[3].config).number, OK)
    assert [trial.state.name for trial in frozen(study)[before:]] == ["FAIL"]
    again = study.repeat("confirm", asked[3].config)
    study.tell(again.number, Infeasible(cause="oom.runtime", evidence="", measurement=OK.measurement))
    taught = last(study)
    assert (taught.state.name, taught.params, taught.constraints) == ("PRUNED", asked[3].point, {"feasible": 1.0})
    assert study.next_number == 6
    assert opened().next_number == 6
