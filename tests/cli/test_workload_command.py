from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Vtune

RUNGS = "rungs: [{name: r, concurrency: 4, requests: 40}]\n"
SYSTEM = "You are a careful assistant of the city library. Answer briefly and name the shelf. " * 4


def write_log(rows: list[str]) -> None:
    messages = [[{"role": "system", "content": text}, {"role": "user", "content": "Why?"}] for text in rows]
    lines = [json.dumps({"messages": one, "max_tokens": 5}) + "\n" for one in messages]
    Path("log.jsonl").write_text("".join(lines))
    Path("w.yaml").write_text(f"name: w\ntrace: {{file: log.jsonl}}\n{RUNGS}")


def test_a_workload_is_shown_with_rates_lengths_and_the_model_length_it_needs(vtune: Vtune) -> None:
    Path("w.yaml").write_text(
        "name: w\nrequests: {prompt_tokens: 100, output_tokens: 20, shared_prefix: {tokens: 300}, n: 2}\n"
        "rungs: [{name: slow, rate: 0.5 /s, arrivals: constant, requests: 50}]\n"
    )
    said = json.loads(vtune("workload", "show", "w.yaml", "--json").stdout)
    [rung] = said["rungs"]
    assert (said["longest_request_tokens"], said["max_model_len"], said["exact"]) == (420, 432, True)
    assert (rung["rate_rps"], rung["gap_cv"], rung["requests"], rung["sequences"]) == (0.5, 0.0, 50, 100)
    assert (rung["prompt_tokens_p50"], rung["prompt_tokens_max"], rung["output_tokens_p99"]) == (400, 400, 20)
    # All but the first request find the 18 whole blocks of 16 in their 300 tokens.
    assert rung["prefix_hit_share"] == pytest.approx(49 * 288 / (50 * 400))


def test_a_date_in_the_system_prompt_is_warned_of_with_its_place(vtune: Vtune) -> None:
    write_log([f"It is 10:0{minute}. {SYSTEM}" for minute in range(8)])
    said = vtune("workload", "show", "w.yaml")
    assert "character 10 of message 0 (system)" in said.stdout


def test_a_system_prompt_that_stays_the_same_is_not_warned_of(vtune: Vtune) -> None:
    write_log([SYSTEM] * 8)
    said = json.loads(vtune("workload", "show", "w.yaml", "--json").stdout)
    assert [warning for warning in said["warnings"] if "differ" in warning] == []
    assert said["rungs"][0]["prefix_hit_share"] > 0.5


def test_a_trace_is_looked_for_beside_the_workload(vtune: Vtune) -> None:
    folder = Path("elsewhere")
    folder.mkdir()
    (folder / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n")
    (folder / "w.yaml").write_text(f"name: w\ntrace: {{file: t.csv}}\n{RUNGS}")
    assert vtune("workload", "show", "elsewhere/w.yaml").exit_code == 0


@pytest.mark.parametrize("name", ["chat", "mixed", "tiny-cpu"])
def test_shipped_workloads_can_be_shown(vtune: Vtune, name: str) -> None:
    result = vtune("workload", "show", name)
    assert result.exit_code == 0
    assert "max-model-len" in result.stdout


def test_an_unknown_workload_names_the_nearest(vtune: Vtune) -> None:
    result = vtune("workload", "show", "chatt")
    assert (result.exit_code, "chat" in result.stderr) == (2, True)
