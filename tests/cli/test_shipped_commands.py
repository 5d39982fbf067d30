from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Vtune

from autotune.spec.shipped import shipped_spaces


def test_init_writes_a_space_that_check_accepts_as_it_is(vtune: Vtune) -> None:
    assert vtune("init", "tiny-cpu").exit_code == 0
    assert vtune("check", "--space", "spaces/tiny-cpu.yaml").exit_code == 0


def test_init_never_overwrites(vtune: Vtune) -> None:
    vtune("init", "tiny-cpu")
    Path("workloads/tiny-cpu.yaml").write_text("mine")
    result = vtune("init", "tiny-cpu")
    assert result.exit_code == 2
    assert Path("workloads/tiny-cpu.yaml").read_text() == "mine"


def test_init_overwrites_when_forced(vtune: Vtune) -> None:
    vtune("init", "tiny-cpu")
    Path("spaces/tiny-cpu.yaml").write_text("mine")
    assert vtune("init", "tiny-cpu", "--force").exit_code == 0
    assert Path("spaces/tiny-cpu.yaml").read_text() != "mine"


def test_init_of_an_unknown_space_names_the_nearest(vtune: Vtune) -> None:
    result = vtune("init", "tiny-cpuu")
    assert (result.exit_code, "did you mean tiny-cpu?" in result.stderr.lower()) == (2, True)


def test_init_where_nothing_can_be_written_exits_with_2(vtune: Vtune) -> None:
    Path("spaces").write_text("a file")
    result = vtune("init", "tiny-cpu")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("command", ["spaces", "workloads"])
def test_everything_shipped_is_listed_with_a_line_about_it(vtune: Vtune, command: str) -> None:
    listed = json.loads(vtune(command, "--json").stdout)[command]
    text = vtune(command).stdout
    assert listed
    assert all(one["summary"] and one["name"] in text for one in listed)


@pytest.mark.parametrize("name", [one.name for one in shipped_spaces()])
def test_a_shipped_space_can_be_checked_by_its_name(vtune: Vtune, name: str) -> None:
    shape = {"hidden_size": 8192, "intermediate_size": 29568, "num_attention_heads": 64, "num_key_value_heads": 8}
    shape |= {"num_hidden_layers": 80, "vocab_size": 152064, "max_position_embeddings": 32768}
    Path("config.json").write_text(json.dumps({**shape, "architectures": ["Qwen2ForCausalLM"]}))
    result = vtune("check", "--space", name, "--gpu", "H200", "--model-config", "config.json", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["dimensions"]


def test_flags_are_filtered_by_name_first(vtune: Vtune) -> None:
    found = json.loads(vtune("flags", "max_num_seqs", "--json").stdout)["flags"]
    assert found[0]["name"] == "max-num-seqs"
    assert found[0]["type"] == "int"


def test_keys_of_json_flags_are_listed_with_a_dot(vtune: Vtune) -> None:
    found = json.loads(vtune("flags", "cudagraph_mode", "--json").stdout)["flags"]
    assert "FULL_AND_PIECEWISE" in next(f for f in found if f["name"] == "compilation-config.cudagraph_mode")["choices"]


def test_a_filter_that_fits_nothing_names_the_nearest_flag(vtune: Vtune) -> None:
    result = vtune("flags", "max-num-sequ")
    assert (result.exit_code, "max-num-seqs" in result.stderr) == (2, True)
