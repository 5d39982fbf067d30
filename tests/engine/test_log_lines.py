"""Folded lines put together again, and what isn't folded left alone."""

from __future__ import annotations

import pytest
from captured import log
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.log_lines import LogLine, log_lines, message, split_logs


@pytest.mark.parametrize(
    "line",
    [
        "(EngineCore_DP0 pid=77) ERROR 11-29 15:12:32 [core.py:1231] ValueError: no",
        "   56.05 (EngineCore pid=2047) ValueError: no",
        "[rank0]: ValueError: no",
        "[rank0]:[E1129 14:23:16.751 ProcessGroupNCCL.cpp:68] ValueError: no",
        "2026-11-29 15:12:32,001 ERROR ValueError: no",
        "vllm-1  | ERROR 11-29 15:12:32 [core.py:1231] ValueError:   no",
    ],
)
def test_prefixes_are_taken_off(line: str) -> None:
    assert message(line) == "ValueError: no"


def test_a_number_with_a_unit_is_no_time() -> None:
    assert message("24.00 GiB KV cache is needed") == "24.00 GiB KV cache is needed"


@pytest.mark.parametrize(
    ("line", "harmless"),
    [
        ("WARNING 11-29 [system_utils.py:299] limit errors like `OSError: [Errno 24] Too many open files`", True),
        ("(APIServer pid=1) INFO 11-29 [x.py:1] ValueError: none", True),
        ("[W1129 14:23:16.75 utils.cpp:68] Warning: NUMA binding", True),
        ("x.py:24: DeprecationWarning: Error: `a` is unsupported", True),
        ("ERROR 11-29 [core.py:1] ValueError: see the WARNING above", False),
        ("ValueError: the level must be INFO or DEBUG", False),
    ],
)
def test_the_level_counts_not_the_words(line: str, harmless: bool) -> None:
    assert LogLine(readings=(line,)).harmless == harmless


@pytest.mark.parametrize("name", ["h200_vllm0.24_base", "h200_vllm0.24_err-len-kv", "cpu_vllm0.32_err-quant-fp8"])
def test_lines_of_a_log_that_nobody_folded_begin_where_they_began(name: str) -> None:
    first = [line.readings[0] for line in log_lines(log(name))]
    lines = [line for line in log(name).splitlines() if line]
    stated = [line for line in lines if "INFO" in line or "ERROR" in line]
    assert [line for line in first if line in set(stated)] == stated


def test_a_full_line_may_have_been_folded_between_words_or_letters() -> None:
    (line,) = log_lines("x" * 75 + " memo\nry is used up")
    assert line.readings == ("x" * 75 + " memory is used up", "x" * 75 + " memo ry is used up")


def test_a_line_of_dashes_separates_logs() -> None:
    assert split_logs("a\n---\n\n---\r\nb --- c\n") == ["a\n", "\nb --- c\n"]


@given(st.text())
def test_nothing_is_lost_but_space_and_colour(text: str) -> None:
    kept = "".join("".join(line.readings[0].split()) for line in log_lines(text.replace("\x1b", "")))
    assert kept == "".join(text.replace("\x1b", "").split())
