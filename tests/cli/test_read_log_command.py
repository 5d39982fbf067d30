"""`vtune read-log`: one answer whatever the log says, one error where there is no log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import FIXTURES, Vtune

REPORTS = FIXTURES / "logs" / "reports"


def test_a_failure_is_an_answer(vtune: Vtune) -> None:
    result = vtune("read-log", str(REPORTS / "cap-01-v1_estimate.log"), "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert (answer["class"], answer["stage"], answer["retry"]) == ("capacity.kv_too_small", "kv_cache", False)
    assert answer["cause_line"].startswith("ValueError: To serve at least one request")
    assert answer["bounds"][0] == {"flag": "max-model-len", "at_most": 34736}
    assert answer["facts"]["max_model_len_bound"] == 34736
    assert "lower max-model-len" in answer["remedy"]


def test_a_good_start_has_no_class(vtune: Vtune) -> None:
    answer = json.loads(vtune("read-log", str(REPORTS / "cfg-04-warn.log"), "--json").stdout)
    assert (answer["class"], answer["cause_line"], answer["bounds"], answer["retry"]) == (None, None, [], False)


def test_several_logs_in_one_file_are_read_apart(vtune: Vtune) -> None:
    answer = json.loads(vtune("read-log", str(REPORTS / "cfg-05-errors.log"), "--json").stdout)
    assert [one["class"] for one in answer["logs"]] == [
        "config.unsupported",
        "env.missing_dependency",
        "config.invalid",
        "config.conflict",
    ]
    assert answer["class"] == "config.unsupported"


def test_the_text_names_class_cause_and_remedy(vtune: Vtune) -> None:
    result = vtune("read-log", str(REPORTS / "cap-04-a.log"))
    assert result.exit_code == 0
    for words in ("infra.gpu_busy", "Free memory on device", "find what else holds", "Retry   yes"):
        assert words in result.stdout


def test_the_gpu_can_be_named_where_the_log_does_not_say(vtune: Vtune) -> None:
    answer = json.loads(vtune("read-log", str(REPORTS / "cap-03-neg.log"), "--gpu", "22.1", "--json").stdout)
    assert answer["facts"]["device_gib"] == pytest.approx(22.1)
    assert {"flag": "gpu-memory-utilization", "above": 0.6466} in answer["bounds"]


def test_a_secret_in_an_error_is_not_repeated(vtune: Vtune) -> None:
    Path("engine.log").write_text("ValueError: no model at https://me:hunter22@example.org/x\n")
    for words in ([], ["--json"]):
        assert "hunter22" not in vtune("read-log", "engine.log", *words).stdout


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "no such file"),
        (b"", "nothing to read"),
        (b" \n---\n\n", "nothing to read"),
        (b"\x7fELF\x00\x01", "no text"),
        (b"\x1f\x8b\x08 packed", "no text"),
    ],
)
def test_what_is_no_log_is_one_error(vtune: Vtune, content: bytes | None, problem: str) -> None:
    if content is not None:
        Path("engine.log").write_bytes(content)
    result = vtune("read-log", "engine.log", "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert problem in result.stderr
    assert "engine.log" in result.stderr


def test_a_folder_is_one_error(vtune: Vtune) -> None:
    Path("logs").mkdir()
    result = vtune("read-log", "logs")
    assert result.exit_code == 2
    assert "folder" in result.stderr


def test_of_a_huge_file_the_beginning_and_the_end_are_read(vtune: Vtune) -> None:
    error = (REPORTS / "cap-06-mamba.log").read_text()
    with Path("engine.log").open("w") as file:
        for _ in range(10):
            file.write("INFO nothing\n" + " " * (1 << 20) + "\n")
        file.write(error)
    assert json.loads(vtune("read-log", "engine.log", "--json").stdout)["class"] == "capacity.state_blocks"
