"""Small files in the formats that are published; every row here is made up."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UserError
from autotune.spec.trace import Trace, TraceRequest, windows_of
from autotune.spec.trace_file import TraceChoice, load_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.6805900,396,109
2023-11-16 18:15:51.1805900,879,55
"""
MOONCAKE = [
    {"timestamp": 27000, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]},
    {"timestamp": 30500, "input_length": 1024, "output_length": 3, "hash_ids": [0, 7]},
]
CHAT = {
    "timestamp": 1700000000.5,
    "request": {
        "model": "gpt-x",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hé?"}],
        "temperature": 0.3,
        "response_format": {"type": "json_object"},
        "stop": ["x"],
        "stream": True,
        "n": 2,
    },
    "response": {"usage": {"prompt_tokens": 17, "completion_tokens": 40}},
}
COMPLETION = {"prompt": "Once upon", "max_tokens": 12, "time": "2023-11-14T22:13:22Z"}
SHAREGPT: list[dict[str, Any]] = [
    {
        "id": "a",
        "conversations": [
            {"from": "system", "value": "S"},
            {"from": "human", "value": "x" * 30},
            {"from": "gpt", "value": "y" * 60},
            {"from": "human", "value": "z" * 9},
            {"from": "gpt", "value": "w" * 3},
        ],
    },
    {"id": "b", "conversations": [{"from": "gpt", "value": "begins with an answer"}]},
]


def loaded(folder: Path, name: str, text: str, **choice: Any) -> Trace:
    (folder / name).write_text(text, encoding="utf-8")
    return load_trace(folder / name, TraceChoice(**choice))


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_azures_rows_keep_their_times_and_lengths(tmp_path: Path) -> None:
    trace = loaded(tmp_path, "t.csv", AZURE)
    assert [(r.at_s, r.prompt_tokens, r.output_tokens) for r in trace.rows] == [
        (0, 374, 44),
        (4, 396, 109),
        (4.5, 879, 55),
    ]
    assert (trace.format, trace.exact, trace.has_times, trace.mean_gap_s) == ("azure", True, True, 2.25)


def test_lengths_are_scaled_and_never_below_one_token(tmp_path: Path) -> None:
    trace = loaded(tmp_path, "t.csv", AZURE, prompt_scale=0.5, output_scale=0.001)
    assert [(r.prompt_tokens, r.output_tokens) for r in trace.rows] == [(187, 1), (198, 1), (440, 1)]


def test_mooncakes_blocks_keep_their_ids_and_its_prompts_their_share_of_the_last_one(tmp_path: Path) -> None:
    trace = loaded(tmp_path, "t.jsonl", lines(*MOONCAKE), block_tokens=32)
    assert [(r.at_s, r.prompt_tokens, r.output_tokens, r.blocks) for r in trace.rows] == [
        (0, 2 * 32 + 5, 50, (0, 1, 2)),
        (3.5, 64, 3, (0, 7)),
    ]


def test_mooncakes_own_lengths_stay_as_they_are_at_512_tokens_a_block(tmp_path: Path) -> None:
    assert [r.prompt_tokens for r in loaded(tmp_path, "t.jsonl", lines(*MOONCAKE)).rows] == [1100, 1024]


def test_a_logged_chat_keeps_its_messages_its_sampling_and_the_servers_counts(tmp_path: Path) -> None:
    row = loaded(tmp_path, "t.jsonl", lines(CHAT)).rows[0]
    assert (row.chat, row.streamed, row.n, row.prompt_tokens, row.output_tokens) == (True, True, 2, 17, 20)
    assert json.loads(row.body or "") == {
        "messages": CHAT["request"]["messages"],  # type: ignore[index]
        "temperature": 0.3,
        "response_format": {"type": "json_object"},
    }


def test_a_logged_completion_without_an_answer_has_the_length_that_was_allowed(tmp_path: Path) -> None:
    row = loaded(tmp_path, "t.jsonl", lines(COMPLETION), bytes_per_token=4).rows[0]
    assert (row.chat, row.streamed, row.output_tokens, row.prompt_tokens) == (False, False, 12, 3)


def test_a_batch_files_requests_are_read_from_their_body(tmp_path: Path) -> None:
    batch = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": COMPLETION}
    assert loaded(tmp_path, "t.jsonl", lines(batch)).rows[0].output_tokens == 12


def test_logged_rows_are_put_in_the_order_of_their_times(tmp_path: Path) -> None:
    rows = loaded(tmp_path, "t.jsonl", lines({**COMPLETION, "time": 1700000002}, CHAT)).rows
    assert [(row.at_s, row.chat) for row in rows] == [(0, True), (1.5, False)]


def test_a_log_whose_rows_have_no_times_throughout_has_none(tmp_path: Path) -> None:
    trace = loaded(tmp_path, "t.jsonl", lines(CHAT, {"prompt": "a", "max_tokens": 1}))
    assert not trace.has_times


def test_logged_token_ids_are_counted_not_estimated(tmp_path: Path) -> None:
    row = loaded(tmp_path, "t.jsonl", lines({"prompt": [5, 6, 7], "max_tokens": 1})).rows[0]
    assert row.prompt_tokens == 3


def test_a_sharegpt_conversation_is_one_row_with_its_later_turns(tmp_path: Path) -> None:
    [row] = loaded(tmp_path, "t.json", json.dumps(SHAREGPT)).rows
    assert json.loads(row.body or "")["messages"] == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "x" * 30},
    ]
    assert (row.prompt_tokens, row.output_tokens, row.at_s) == (11, 20, None)
    assert [(turn.text, turn.prompt_tokens, turn.output_tokens) for turn in row.later] == [("z" * 9, 3, 1)]
    assert row.longest_tokens == 11 + 20 + 3 + 1


def test_a_window_is_unbroken(tmp_path: Path) -> None:
    trace = loaded(tmp_path, "t.csv", AZURE, first_row=1, rows=2)
    assert [(r.at_s, r.prompt_tokens) for r in trace.rows] == [(0, 396), (0.5, 879)]


def rows_at(times: list[float]) -> list[TraceRequest]:
    return [TraceRequest(at_s=at_s, prompt_tokens=1, output_tokens=1, line=line) for line, at_s in enumerate(times)]


@given(
    st.lists(st.floats(min_value=0, max_value=100), min_size=1, max_size=60).map(
        lambda gaps: list(itertools.accumulate(gaps))
    ),
    st.integers(1, 80),
    st.integers(1, 6),
    st.integers(0, 60),
)
def test_windows_take_different_rows_in_order_and_keep_the_gaps_inside_them(
    times: list[float], count: int, windows: int, first_row: int
) -> None:
    first_row = min(first_row, len(times) - 1)
    taken = windows_of(rows_at(times), count=count, windows=windows, first_row=first_row)
    places = [row.line for row in taken]
    assert places == sorted(set(places)) and min(places) >= first_row
    assert len(taken) == min(count, len(times) - first_row)
    at_s = [row.at_s or 0.0 for row in taken]
    assert at_s == sorted(at_s) and at_s[0] == 0
    breaks = [later - earlier != 1 for earlier, later in itertools.pairwise(places)]
    assert sum(breaks) < windows
    if windows == 1:
        own = [times[later] - times[earlier] for earlier, later in itertools.pairwise(places)]
        assert [later - earlier for earlier, later in itertools.pairwise(at_s)] == pytest.approx(own, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "text", "choice", "where", "key", "remedy"),
    [
        ("t.csv", AZURE + "2023-11-16 18:15:52,many,3\n", {}, "t.csv:5", "ContextTokens", "whole number"),
        ("t.csv", AZURE + "2023-11-16 18:15:52,0,3\n", {}, "t.csv:5", "ContextTokens", "1 or more"),
        ("t.csv", AZURE + "yesterday,1,3\n", {}, "t.csv:5", "TIMESTAMP", "2023-11-16"),
        ("t.csv", AZURE + "2023-11-16 18:15:52,1\n", {}, "t.csv:5", None, "complete or remove"),
        ("t.csv", "A,B\n1,2\n", {"format": "azure"}, "t.csv:1", "TIMESTAMP", "first"),
        ("t.csv", "A,B\n1,2\n", {}, "t.csv", None, "say format"),
        ("t.csv", AZURE.partition("\n")[0], {}, "t.csv", None, "format is azure"),
        ("t.csv", AZURE, {"first_row": 3}, "t.csv", "first_row", "2 or before"),
        ("t.jsonl", lines(MOONCAKE[0]) + "{", {}, "t.jsonl:2", None, "one JSON object per line"),
        ("t.jsonl", lines(MOONCAKE[0], [1]), {}, "t.jsonl:2", None, "one per line"),
        ("t.jsonl", lines({**MOONCAKE[0], "hash_ids": [1]}), {}, "t.jsonl:1", "hash_ids", "one id per block"),
        ("t.jsonl", lines({**MOONCAKE[0], "timestamp": "now"}), {}, "t.jsonl:1", "timestamp", "milliseconds"),
        ("t.jsonl", lines({**MOONCAKE[0], "output_length": None}), {}, "t.jsonl:1", "output_length", "1 or more"),
        ("t.jsonl", lines({"prompt": "a"}), {}, "t.jsonl:1", "max_tokens", "usage.completion_tokens"),
        ("t.jsonl", lines({"body": {"max_tokens": 1}}), {}, "t.jsonl:1", "body.prompt", "one of them"),
        (
            "t.jsonl",
            lines({"messages": [{"role": "user"}], "max_tokens": 1}),
            {},
            "t.jsonl:1",
            "messages.0",
            "only text",
        ),
        ("t.jsonl", lines({**COMPLETION, "time": "noon"}), {}, "t.jsonl:1", "time", "ISO 8601"),
        ("t.jsonl", lines({**COMPLETION, "n": "two"}), {}, "t.jsonl:1", "n", "correct it"),
        ("t.json", "[{}]", {}, "t.json", "0.conversations", "add it"),
        ("t.json", '[{"conversations": [{"from": "human"}]}]', {}, "t.json", "0.conversations.0", "correct or remove"),
        ("t.json", "[", {}, "t.json", None, "JSON list"),
        ("t.json", json.dumps(SHAREGPT[1:]), {}, "t.json", None, "format is sharegpt"),
    ],
)
def test_a_bad_row_is_one_error_with_its_line_key_and_remedy(
    tmp_path: Path, name: str, text: str, choice: dict[str, Any], where: str, key: str | None, remedy: str
) -> None:
    with pytest.raises(UserError) as caught:
        loaded(tmp_path, name, text, **choice)
    assert str(caught.value.file) == str(tmp_path / where)
    assert caught.value.key == key
    assert remedy in str(caught.value.remedy)


def test_a_trace_that_isnt_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.csv.*no such trace"):
        load_trace(tmp_path / "gone.csv", TraceChoice())
