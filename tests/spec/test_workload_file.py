from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UserError
from autotune.spec.workload import (
    ClosedLoop,
    FixedLength,
    LogNormalLength,
    Poisson,
    SharedPrefix,
    UniformLength,
)
from autotune.spec.workload_file import load_workload, parse_workload

FULL = """
name: everything
mix:
  - share: 3
    prompt_tokens: {lognormal: {median: 200, sigma: 0.8, min: 16, max: 1500}}
    output_tokens: {uniform: [10, 50]}
    shared_prefix: {tokens: 400, groups: 2}
  - prompt_tokens: 64
    output_tokens: 8
    n: 4
rungs:
  - {name: slow, rate: 4 /s, requests: 200}
  - {name: fast, concurrency: 32, requests: 100, duration: 10 s}
  - {name: long, concurrency: 8, duration: 1 min}
reference_rungs: [slow, fast]
warm_up: 3
"""
REQUESTS = "name: w\nrequests: {prompt_tokens: 10, output_tokens: 5}\n"
RUNGS = "rungs: [{name: r, concurrency: 4, requests: 100}]\n"


def test_a_full_workload_is_read() -> None:
    workload = parse_workload(FULL, file="w.yaml")
    first, second = workload.shapes
    assert first.prompt == LogNormalLength(median=200, sigma=0.8, low=16, high=1500)
    assert first.output == UniformLength(low=10, high=50)
    assert first.prefix == SharedPrefix(tokens=400, groups=2)
    assert (second.prompt, second.output, second.n, second.share) == (
        FixedLength(tokens=64),
        FixedLength(tokens=8),
        4,
        1.0,
    )
    assert [rung.arrivals for rung in workload.rungs] == [
        Poisson(rate_rps=4.0),
        ClosedLoop(concurrency=32),
        ClosedLoop(concurrency=8),
    ]
    assert [(rung.requests, rung.duration_s) for rung in workload.rungs] == [(200, 0.0), (100, 10.0), (1, 60.0)]
    assert (workload.reference.name, workload.warm_up_requests) == ("fast", 3)


def test_the_longest_request_counts_prefix_prompt_and_output() -> None:
    assert parse_workload(FULL, file="w").longest_request_tokens == 400 + 1500 + 50


def test_without_reference_rungs_all_are() -> None:
    assert parse_workload(REQUESTS + RUNGS, file="w").reference_rungs == ("r",)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_uniform_length_needs_its_ends_in_order(low: int, high: int) -> None:
    text = f"name: w\nrequests: {{prompt_tokens: {{uniform: [{low}, {high}]}}, output_tokens: 5}}\n{RUNGS}"
    if low <= high:
        assert parse_workload(text, file="w").shapes[0].prompt == UniformLength(low=low, high=high)
    else:
        with pytest.raises(UserError, match="uniform"):
            parse_workload(text, file="w")


@pytest.mark.parametrize(
    ("text", "key", "remedy"),
    [
        (REQUESTS + "rungs: [{name: r, concurrency: 4, requests: 0}]", "rungs.0.requests", "100"),
        (REQUESTS + "rungs: [{name: r, concurrency: 4, requests: -3}]", "rungs.0.requests", "100"),
        (REQUESTS + "rungs: [{name: r, concurrency: 4}]", "rungs.0", "requests"),
        (REQUESTS + "rungs: [{name: r, requests: 4}]", "rungs.0", "concurrency"),
        (REQUESTS + "rungs: [{name: r, rate: 4 /s, concurrency: 1, requests: 4}]", "rungs.0", "exactly one"),
        (REQUESTS + "rungs: [{name: r, rate: 4, requests: 4}]", "rungs.0.rate", "unit"),
        (REQUESTS + "rungs: [{name: r, rate: 0 /s, requests: 4}]", "rungs.0.rate", "4 /s"),
        (REQUESTS + "rungs: [{name: r, concurrency: 0, requests: 4}]", "rungs.0.concurrency", "correct"),
        (REQUESTS + "rungs: [{name: r, concurrency: 4, requests: 9, duration: 3}]", "rungs.0.duration", "unit"),
        (REQUESTS + "rungs: [{name: r, concurency: 4, requests: 9}]", "rungs.0.concurency", "did you mean concurrency"),
        (REQUESTS + "rungs: []", "rungs", "at least one"),
        (REQUESTS, "rungs", "add `rungs:`"),
        (REQUESTS + RUNGS + "reference_rungs: [x]", "reference_rungs.0", "r"),
        (REQUESTS + RUNGS + "reference_rung: [r]", "reference_rung", "did you mean reference_rungs"),
        (
            REQUESTS + "rungs: [{name: r, concurrency: 4, requests: 9}, {name: r, concurrency: 8, requests: 9}]",
            "rungs.1.name",
            "rename",
        ),
        ("name: w\n" + RUNGS, "requests", "exactly one"),
        (FULL + "requests: {prompt_tokens: 1, output_tokens: 1}", "mix", "exactly one"),
        ("name: w\nrequests: {prompt_tokens: 0, output_tokens: 5}\n" + RUNGS, "requests.prompt_tokens", "1 or more"),
        ("name: w\nrequests: {prompt_tokens: 1.5, output_tokens: 5}\n" + RUNGS, "requests.prompt_tokens", "uniform"),
        (
            "name: w\nrequests: {prompt_tokens: {gauss: 4}, output_tokens: 5}\n" + RUNGS,
            "requests.prompt_tokens",
            "uniform",
        ),
        (
            "name: w\nrequests: {prompt_tokens: {lognormal: {median: 9, sigma: 1, max: 5}}, output_tokens: 5}\n"
            + RUNGS,
            "requests.prompt_tokens.lognormal",
            "widen",
        ),
        ("name: w\nrequests: {prompt_tokens: 5}\n" + RUNGS, "requests.output_tokens", "add `output_tokens:`"),
        ("name: w\nmix: []\n" + RUNGS, "mix", "at least one"),
        ("name: [w]\n" + REQUESTS.partition("\n")[2] + RUNGS, "name", "write text"),
    ],
)
def test_a_mistake_is_one_error_with_file_key_and_remedy(text: str, key: str, remedy: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_workload(text, file="w.yaml")
    assert str(caught.value.file).startswith("w.yaml")
    assert caught.value.key == key
    assert remedy in str(caught.value.remedy)


def test_a_file_that_isnt_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.yaml"):
        load_workload(tmp_path / "gone.yaml")


def test_a_file_that_isnt_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"w\.yaml.*UTF-8"):
        load_workload(tmp_path / "w.yaml")


def test_a_folder_is_no_workload(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be read"):
        load_workload(tmp_path)
