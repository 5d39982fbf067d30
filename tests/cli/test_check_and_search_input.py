"""What is wrong with the input is said in one line, before anything starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Vtune
from typer.testing import Result

MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "torch_dtype": "bfloat16",
}
WORKLOAD = {
    "name": "w",
    "requests": {"prompt_tokens": 64, "output_tokens": 16},
    "rungs": [{"name": "steady", "concurrency": 8, "requests": 120}],
}
SPACE = {
    "name": "s",
    "model": "./model",
    "workload": "./w.yaml",
    "fixed": {"max-model-len": "from-workload"},
    "search": {"max-num-seqs": [16, 64]},
    "objectives": {"output_tok_per_s_per_gpu": "maximize", "ttft_p99": "minimize"},
}


@pytest.fixture
def check(vtune: Vtune) -> Any:
    """`check` of the space above with some keys changed."""

    def run(command: str = "check", *words: str, sent: Mapping[str, object] | None = None, **space: object) -> Result:
        Path("model").mkdir(exist_ok=True)
        Path("model/config.json").write_text(json.dumps(MODEL))
        Path("w.yaml").write_text(yaml.safe_dump({**WORKLOAD, **(sent or {})}))
        Path("s.yaml").write_text(yaml.safe_dump({**SPACE, **space}, sort_keys=False))
        return vtune(command, "--space", "s.yaml", *words)

    return run


@pytest.mark.parametrize("command", ["check", "search"])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"search": {"max-num-seq": [1, 2]}}, ["s.yaml", "max-num-seq", "max-num-seqs"]),
        ({"search": {"block-size": ["many", 32]}}, ["s.yaml", "search.block-size", "'many'", "whole number"]),
        ({"objektives": {}}, ["s.yaml", "objektives", "objectives"]),
        ({"model": "./nowhere"}, ["./nowhere", "no such model folder"]),
        ({"search": {"tensor-parallel-size": [1, 3]}}, ["s.yaml", "tensor-parallel-size 3", "4 attention heads"]),
        ({"workload": "./none.yaml"}, ["none.yaml", "no such workload"]),
        ({"workload": None}, ["s.yaml", "workload", "--workload"]),
    ],
)
def test_a_mistake_is_one_line_that_names_it_and_exits_with_2(
    check: Any, command: str, wrong: dict[str, object], said: list[str]
) -> None:
    result = check(command, **wrong)
    assert result.exit_code == 2
    assert result.stdout == ""
    line = result.stderr.splitlines()[-1]
    assert [word for word in said if word not in line] == []
    assert "Traceback" not in result.stderr


def test_a_workload_that_sends_nothing_is_refused(check: Any) -> None:
    result = check(sent={"rungs": [{"name": "steady", "concurrency": 8, "requests": 0}]})
    assert (result.exit_code, "rungs.0.requests" in result.stderr) == (2, True)


def test_a_refused_search_leaves_no_folder(check: Any) -> None:
    check("search", search={"max-num-seq": [1, 2]})
    assert not Path("runs").exists()


def test_a_search_on_gpus_where_there_are_none_exits_with_4(check: Any, on_gpus: None) -> None:
    result = check("search")
    assert result.exit_code == 4
    assert "no GPU found on this machine" in result.stderr
    assert not Path("runs").exists()


def test_a_check_needs_no_gpu(check: Any, on_gpus: None) -> None:
    assert check().exit_code == 0


@pytest.mark.parametrize("given", ["H200", "nvidia h100", "80", "80 GiB"])
def test_a_check_says_what_fits_into_a_gpu_that_is_not_here(check: Any, given: str) -> None:
    answer = json.loads(check("check", "--gpu", given, "--json").stdout)
    assert answer["gpu_gib"] > 70
    default = answer["capacity"][0]
    assert default["change"] == "default"
    assert default["kv_gib_low"] < default["kv_gib"] < default["kv_gib_high"]
    assert default["impossible"] is None


def test_an_unknown_gpu_is_the_users_mistake(check: Any) -> None:
    result = check("check", "--gpu", "H2OO")
    assert (result.exit_code, "--gpu" in result.stderr) == (2, True)


def test_a_model_that_is_not_here_can_be_checked_by_its_config(check: Any) -> None:
    assert check("check", "--model-config", "model", model="some/where").exit_code == 0


def test_a_hub_out_of_reach_is_the_environments_fault(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_CACHE", "none")
    result = check(model="some/where")
    assert (result.exit_code, "--model-config" in result.stderr) == (4, True)


def test_what_this_machine_lacks_is_taken_out_and_said(check: Any) -> None:
    """Two engines of two GPUs each are pretended; four GPUs for one engine are too many."""
    result = check("search", "--simulate", "--simulated-gpus", "2", "--trials", "0", search={"max-num-seqs": [1, 2]})
    assert result.exit_code == 2  # --trials 0: nothing was started


def test_gated_flags_stay_out_with_a_notice_unless_allowed(check: Any) -> None:
    search = {"max-num-seqs": [16, 64], "kv-cache-dtype": ["auto", "fp8"]}
    held = json.loads(check("check", "--json", search=search).stdout)
    allowed = json.loads(check("check", "--json", "--allow-quality-loss", search=search).stdout)
    named = json.loads(check("check", "--json", "--allow", "kv-cache-dtype", search=search).stdout)
    assert held["pinned"] == ["kv-cache-dtype"]
    assert any("kv-cache-dtype" in notice for notice in held["notices"])
    assert [one["name"] for one in allowed["dimensions"]] == ["max-num-seqs", "kv-cache-dtype"]
    assert named["dimensions"] == allowed["dimensions"]


def test_a_check_says_what_would_be_searched_and_what_it_costs(check: Any) -> None:
    text = check("check", rules=["max-num-batched-tokens >= max-num-seqs"]).stdout
    for fact in ("max-num-seqs", "16, 64", "at most 2 candidates", "rule: max-num-batched-tokens", "engine-hours"):
        assert fact in text


def test_markup_in_a_space_is_shown_as_it_is(check: Any) -> None:
    assert "Space [red]x[/red]: ./model" in check(name="[red]x[/red]").stdout


def test_terminal_codes_in_a_space_do_not_reach_the_terminal(check: Any) -> None:
    result = check(name="a\x1b[31mb", slos={"ttft_p99\x1b[31m": 1})
    assert "\x1b" not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "soon"], "--budget"),
        (["--budget", "0 s"], "--budget"),
        (["--gpu-budget", "30"], "--gpu-budget"),
        (["--trials", "0"], "--trials"),
        (["--sampler", "magic"], "--sampler"),
        (["--seed", "-1"], "--seed"),
        (["--sead", "1"], "--sead"),
    ],
)
def test_a_search_option_that_cannot_be_used_exits_with_2(check: Any, words: list[str], said: str) -> None:
    result = check("search", *words)
    assert (result.exit_code, said in result.stderr, result.stderr.count("\n")) == (2, True, 1)


def test_a_search_needs_a_space_or_a_run(vtune: Vtune) -> None:
    result = vtune("search")
    assert (result.exit_code, "--space" in result.stderr) == (2, True)


def test_a_folder_that_holds_a_run_is_not_written_to(check: Any) -> None:
    Path("there").mkdir()
    Path("there/run.json").write_text("{}")
    result = check("search", "--out", "there")
    assert (result.exit_code, "--resume" in result.stderr) == (2, True)
    assert Path("there/run.json").read_text() == "{}"


def test_a_vllm_that_cannot_be_asked_is_said_and_stops_nothing(check: Any) -> None:
    """The catalogue of these tests names an interpreter that isn't there."""
    result = check("check", "--json")
    assert result.exit_code == 0
    validation = json.loads(result.stdout)["validation"]
    assert (validation["refused"], validation["median_ms"]) == ([], None)
    assert "vLLM can't be asked" in validation["not_asked"]
    assert "vLLM itself wasn't asked" in check("check").stdout


def test_vllm_is_not_asked_where_it_was_told_not_to_be(check: Any) -> None:
    assert json.loads(check("check", "--json", "--no-ask-vllm").stdout)["validation"] is None


@pytest.mark.parametrize(("words", "why"), [(["--gpu", "H200"], "for another"), ([], "none is here")])
def test_vllm_is_not_asked_about_a_machine_that_it_is_not_on(
    check: Any, on_gpus: None, words: list[str], why: str
) -> None:
    assert why in json.loads(check("check", *words, "--json").stdout)["validation"]["not_asked"]


def test_what_a_named_gpu_is_too_old_for_is_not_searched(check: Any) -> None:
    search = {"dtype": ["float16", "bfloat16"], "max-num-seqs": [16, 64]}
    removed = json.loads(check("check", "--gpu", "T4", "--allow-quality-loss", "--json", search=search).stdout)[
        "removed"
    ]
    assert [(one["name"], one["value"]) for one in removed] == [("dtype", "bfloat16")]


def test_known_bad_combinations_are_notices(check: Any) -> None:
    notices = json.loads(check("check", "--json", fixed={"cpu-offload-gb": 2}).stdout)["notices"]
    assert any("cpu-offload-gb 2 (the default)" in notice for notice in notices)


def test_a_cpu_build_is_not_asked_about_a_space_for_gpus(check: Any) -> None:
    answer = json.loads(check("check", "--json", search={"gpu-memory-utilization": [0.8, 0.9]}).stdout)
    assert "it has gpu-memory-utilization" in answer["validation"]["not_asked"]
