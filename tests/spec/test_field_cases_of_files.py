"""Field cases about what a space or a workload may ask for, each with its input: tests/fixtures/cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from spec_catalogue import problem, small_catalogue, with_lines

from autotune.errors import UserError
from autotune.report.plan import Plan, plan
from autotune.report.workload_facts import workload_facts
from autotune.search.points import every_point
from autotune.spec.graph_grid import off_grid
from autotune.spec.workload import ClosedLoop
from autotune.spec.workload_file import parse_workload

CASES = Path(__file__).parents[1] / "fixtures" / "cases"


def case(name: str, file: str) -> dict[str, Any]:
    said: dict[str, Any] = yaml.safe_load((CASES / name / file).read_text())
    return said


# ---------------------------------------------------------------- BEN-03


def workload_of(rung: str, *, before: str = "") -> str:
    return f"name: w\nrequests: {{prompt_tokens: 100, output_tokens: 10}}\nrungs:\n{before}  - {rung}\n"


def asked_at_once() -> str:
    asked = case("BEN-03", "workload.yaml")
    return workload_of(f"{{name: all, rate: {asked['request_rate']}, requests: {asked['num_requests']}}}")


def limited() -> str:
    limit_ms = case("BEN-03", "workload.yaml")["slo"]["ttft_p99_ms"]
    return with_lines(f"slos: {{ttft_p99: {limit_ms} ms}}", drop=("slos",))


def saturated(notices: tuple[str, ...]) -> list[str]:
    return [notice for notice in notices if "saturated" in notice]


@pytest.mark.parametrize("rate", ["inf", ".inf", "inf /s", "Infinity"])
def test_ben_03_a_rate_without_end_sends_everything_at_once(rate: str) -> None:
    [rung] = parse_workload(workload_of(f"{{name: all, rate: {rate}, requests: 1000}}"), file="w.yaml").rungs
    assert (rung.arrivals, rung.requests, rung.at_once) == (ClosedLoop(concurrency=1000), 1000, True)


@pytest.mark.parametrize(
    ("rung", "key"),
    [
        ("{name: r, rate: inf}", "rate"),
        ("{name: r, rate: inf, duration: 10 s}", "duration"),
        ("{name: r, rate: inf, requests: 9, duration: 10 s}", "duration"),
        ("{name: r, rate: inf, requests: 9, arrivals: constant}", "arrivals"),
        ("{name: r, rate: inf, requests: 0}", "requests"),
        ("{name: r, rate: [1 /s, inf], requests: 9, duration: 10 s}", "rate"),
    ],
)
def test_ben_03_a_rate_without_end_has_a_number_of_requests_and_nothing_else(rung: str, key: str) -> None:
    with pytest.raises(UserError, match=rf"rungs\.0\.{key}"):
        parse_workload(workload_of(rung), file="w.yaml")


def test_ben_03_a_latency_limit_on_a_rung_without_a_rate_is_warned_of() -> None:
    [notice] = saturated(problem(limited(), asked_at_once()).notices)
    assert "ttft_p99_ms" in notice
    assert "1000 requests all at once" in notice


def test_ben_03_a_latency_objective_is_warned_of_as_a_limit_is() -> None:
    assert saturated(problem(with_lines(drop=("slos",)), asked_at_once()).notices)


def test_ben_03_throughput_alone_may_be_judged_on_a_backlog() -> None:
    space = with_lines(
        "objectives: {output_tok_per_s_per_gpu: maximize, tpot_p99: minimize}", drop=("slos", "objectives")
    )
    assert saturated(problem(space, asked_at_once()).notices) == []


def test_ben_03_a_rate_as_last_reference_rung_is_what_latencies_are_judged_by() -> None:
    text = workload_of("{name: users, rate: 4 /s, requests: 200}", before="  - {name: all, rate: inf, requests: 9}\n")
    assert saturated(problem(limited(), text).notices) == []


@pytest.mark.parametrize(("clients", "warned"), [(32, False), (33, True)])
def test_ben_03_a_closed_loop_far_above_the_largest_engine_is_a_backlog(clients: int, warned: bool) -> None:
    """The space's engines run 16 requests at most."""
    text = workload_of(f"{{name: busy, concurrency: {clients}, requests: 500}}")
    assert bool(saturated(problem(limited(), text).notices)) == warned


def test_ben_03_engines_of_unknown_size_are_not_judged() -> None:
    space = with_lines("search: {max-num-seqs: [null, 8], enable-prefix-caching: [true, false]}", drop=("search",))
    assert saturated(problem(space, workload_of("{name: busy, concurrency: 900, requests: 9000}")).notices) == []


def test_ben_03_a_workload_itself_says_that_it_is_a_backlog() -> None:
    facts = workload_facts(parse_workload(asked_at_once(), file="w.yaml"), block_tokens=16)
    [warning] = facts.warnings
    assert "saturated" in warning
    assert facts.rungs[0].arrivals == "all 1,000 at once"


# ---------------------------------------------------------------- BEN-04


def long_prompts(api: str) -> str:
    said = (CASES / "BEN-04" / "usage.jsonl").read_text().splitlines()[0]
    row = yaml.safe_load(said)
    lengths = f"prompt_tokens: {row['requested_input']}, output_tokens: {row['usage']['completion_tokens']}"
    return f"name: w\nrequests: {{{lengths}, api: {api}}}\nrungs: [{{name: r, rate: 1 /s, requests: 100}}]\n"


def lengths_searched(values: list[int]) -> str:
    return with_lines(f"search: {{max-model-len: {values}}}", drop=("fixed", "search"))


def tight(notices: tuple[str, ...]) -> list[str]:
    return [notice for notice in notices if "too tight" in notice]


def test_ben_04_the_nominal_sum_is_too_tight_for_prompts_that_are_texts() -> None:
    values = case("BEN-04", "space.yaml")["max_model_len"]["choices"]
    [notice] = tight(problem(lengths_searched(values), long_prompts("chat")).notices)
    assert notice.startswith("max-model-len 9216 is too tight")
    assert "9728" not in notice


def test_ben_04_token_ids_cannot_drift_so_their_sum_is_enough() -> None:
    values = case("BEN-04", "space.yaml")["max_model_len"]["choices"]
    assert tight(problem(lengths_searched(values), long_prompts("completions")).notices) == []


def test_ben_04_what_is_taken_from_the_workload_leaves_room_for_texts() -> None:
    exact, text = (problem(workload=long_prompts(api)) for api in ("completions", "chat"))
    assert exact.space.fixed["max-model-len"] == 9216
    assert text.space.fixed["max-model-len"] == 9680
    assert tight(text.notices) == []


def test_ben_04_a_chat_template_has_room_beside_short_prompts_too() -> None:
    requests = "requests: {prompt_tokens: 20, output_tokens: 12, api: chat}"
    text = f"name: w\n{requests}\nrungs: [{{name: r, concurrency: 1, requests: 9}}]\n"
    assert problem(workload=text).space.fixed["max-model-len"] == 96


# ---------------------------------------------------------------- BEN-09


def planned(*search: str, fixed: str = "", platform: str = "cuda", vllm: str = "0.24.0") -> Plan:
    space = with_lines(f"fixed: {{max-model-len: 512{fixed}}}", "search:", *search, drop=("fixed", "search"))
    catalogue = replace(small_catalogue(), vllm_version=vllm)
    return plan(problem(space), catalogue, shape=None, devices=1, platform=platform)


def off(made: Plan) -> list[str]:
    return [notice for notice in made.problem.notices if "CUDA graphs" in notice]


def entry(**more: Any) -> str:
    asked = case("BEN-09", "space.yaml")["max_num_seqs"]
    extra = "".join(f", {key}: {value}" for key, value in more.items())
    return f"  max-num-seqs: {{min: {asked['low']}, max: {asked['high']}{extra}}}"


def test_ben_09_a_free_range_is_told_what_is_on_the_grid() -> None:
    """A batch of 97 runs slower than one of 96: CUDA graphs are captured for multiples of 8."""
    [notice] = off(planned(entry()))
    assert "On that grid are 96, 104: write multiple_of: 8" in notice
    assert "the response isn't smooth" in notice


def test_ben_09_what_the_notice_proposes_is_on_the_grid() -> None:
    made = planned(entry(multiple_of=8))
    assert off(made) == []
    assert [point["max-num-seqs"] for point in every_point(made.problem.space)] == [96, 104]


@pytest.mark.parametrize(
    ("written", "named", "nearest"),
    [
        ("[96, 100, 104]", "max-num-seqs 100 of this space lies", "96, 104"),
        ("[1, 2, 3, 6]", "max-num-seqs 3, 6 of this space lie", "2, 4, 8"),
        ("[256, 264]", "max-num-seqs 264 of this space lies", "256, 272"),
    ],
)
def test_ben_09_values_written_down_are_named_with_their_neighbours(written: str, named: str, nearest: str) -> None:
    [notice] = off(planned(f"  max-num-seqs: {written}"))
    assert named in notice
    assert f"On that grid are {nearest}" in notice


@pytest.mark.parametrize("written", ["[1, 2, 4, 8, 96, 256, 272, 512]", "[512, 1000]"])
def test_ben_09_values_on_the_grid_and_above_it_are_not_warned_of(written: str) -> None:
    assert off(planned(f"  max-num-seqs: {written}")) == []


@pytest.mark.parametrize(
    "engine",
    [
        {"fixed": ", enforce-eager: true"},
        {"fixed": ", compilation-config.cudagraph_mode: NONE"},
        {"platform": "cpu"},
        {"vllm": "0.32.0"},
    ],
    ids=["eager", "no graphs", "cpu", "captures it itself"],
)
def test_ben_09_engines_without_that_cliff_get_no_warning(engine: dict[str, str]) -> None:
    assert off(planned(entry(), **engine)) == []


@pytest.mark.parametrize("vllm", ["0.24.0", "0.32.0"])
def test_ben_09_a_largest_graph_off_the_grid_is_truncated_in_every_release(vllm: str) -> None:
    [notice] = off(planned("  max-cudagraph-capture-size: [40, 42]", vllm=vllm))
    assert "max-cudagraph-capture-size 42 of this space lies" in notice
    assert "vLLM truncates it" in notice


def test_ben_09_a_trial_off_the_grid_carries_the_warning() -> None:
    [warning] = off_grid({"max-num-seqs": 97}, vllm_version="0.24.0")
    assert warning.startswith("max-num-seqs 97 lies between sizes that CUDA graphs are captured for, 96 and 104")
    assert off_grid({"max-num-seqs": 96}, vllm_version="0.24.0") == ()
