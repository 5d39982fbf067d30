import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UserError
from autotune.spec.workload import (
    ClosedLoop,
    ConstantArrivals,
    Conversation,
    EmpiricalLength,
    FixedLength,
    GammaArrivals,
    GoodputSearch,
    LogNormalLength,
    Poisson,
    RampArrivals,
    Rung,
    SharedPrefix,
    TraceArrivals,
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


MORE = """
name: more
mix:
  - prompt_tokens: {empirical: {64: 3, 512: 1}}
    output_tokens: {empirical: [5, 5, 9]}
    conversation: {turns: {uniform: [1, 4]}, think_time: 2 s}
  - {prompt_tokens: 10, output_tokens: 5, api: chat, stream: false, sampling: {temperature: 0.7},
     response_format: {type: json_object}}
rungs:
  - {name: burst, rate: 0.2 /s, arrivals: gamma, burstiness: 0.5, requests: 10}
  - {name: even, rate: 12 /min, arrivals: constant, requests: 10}
  - {name: up, rate: [1 /s, 8 /s], duration: 60 s}
"""
TRACE = "name: w\ntrace: {file: t.csv}\n"
CSV = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46,374,44\n2023-11-16 18:15:48,396,109\n2023-11-16 18:15:49,8,4\n"
)


def test_lengths_conversations_and_forms_are_read() -> None:
    first, second = parse_workload(MORE, file="w").shapes
    assert first.prompt == EmpiricalLength(values=(64, 512), weights=(3, 1))
    assert first.output == EmpiricalLength(values=(5, 9), weights=(2, 1))
    assert first.conversation == Conversation(turns=UniformLength(low=1, high=4), think_s=2.0)
    assert first.longest_tokens == 4 * (512 + 9)
    assert (second.form.chat, second.form.streamed, second.form.fixes_length) == (True, False, False)
    assert json.loads(second.form.parameters) == {"temperature": 0.7, "response_format": {"type": "json_object"}}


def test_open_loops_are_read_with_their_rates_per_second() -> None:
    assert [rung.arrivals for rung in parse_workload(MORE, file="w").rungs] == [
        GammaArrivals(rate_rps=0.2, burstiness=0.5),
        ConstantArrivals(rate_rps=0.2),
        RampArrivals(from_rps=1, to_rps=8, over_s=60),
    ]


def test_a_traces_rung_sends_every_row_of_its_window_once(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(CSV)
    text = TRACE.replace("t.csv", "t.csv, rows: 2") + "rungs: [{name: r, arrivals: trace, rate_scale: 2}]"
    workload = parse_workload(text, file=tmp_path / "w.yaml")
    assert (workload.rungs[0].arrivals, workload.rungs[0].requests) == (TraceArrivals(rate_scale=2.0), 2)
    assert (workload.longest_request_tokens, workload.mean_output_tokens) == (396 + 109, 76.5)


@pytest.mark.parametrize(
    ("text", "key", "remedy"),
    [
        (REQUESTS + "rungs: [{name: r, rate: 1 /s, arrivals: gamma, requests: 4}]", "rungs.0.arrivals", "burstiness"),
        (REQUESTS + "rungs: [{name: r, rate: 1 /s, burstiness: 2, requests: 4}]", "rungs.0.burstiness", "leave it out"),
        (REQUESTS + "rungs: [{name: r, concurrency: 1, arrivals: constant, requests: 4}]", "rungs.0.arrivals", "leave"),
        (REQUESTS + "rungs: [{name: r, rate: 1 /s, rate_scale: 2, requests: 4}]", "rungs.0.rate_scale", "leave it out"),
        (REQUESTS + "rungs: [{name: r, rate: [1 /s, 2 /s], requests: 4}]", "rungs.0.rate", "duration"),
        (REQUESTS + "rungs: [{name: r, rate: [1 /s], duration: 4 s}]", "rungs.0.rate", "[1 /s, 8 /s]"),
        (REQUESTS + "rungs: [{name: r, rate: [1 /s, 0 /s], duration: 4 s}]", "rungs.0.rate.1", "4 /s"),
        (REQUESTS + "rungs: [{name: r, arrivals: trace}]", "rungs.0.arrivals", "add `trace:`"),
        (REQUESTS + "rungs: [{name: stress, concurrency: 1, requests: 4}]", "rungs.0.name", "rename it"),
        (TRACE + "rungs: [{name: r, arrivals: trace, rate: 4 /s}]", "rungs.0.rate", "leave it out"),
        (TRACE.replace("t.csv", "t.csv, rows: 1") + "rungs: [{name: r, arrivals: trace}]", "rungs.0.arrivals", "rows"),
        (TRACE.replace("t.csv", "t.csv, block_tokens: 32") + RUNGS, "trace.block_tokens", "leave it out"),
        (TRACE.replace("t.csv", "t.csv, prompt_scale: 0") + RUNGS, "trace.prompt_scale", "correct"),
        (TRACE + REQUESTS.partition("\n")[2] + RUNGS, "trace", "exactly one"),
        (MORE.replace("[5, 5, 9]", "[0]"), "mix.0.output_tokens.empirical", "correct or remove"),
        (MORE.replace("64: 3", "64: -1"), "mix.0.prompt_tokens.empirical.64", "64: 1"),
        (MORE.replace("think_time: 2 s", "think_time: 2"), "mix.0.conversation.think_time", "2 s"),
        (MORE.replace("think_time: 2 s}", "think_time: 2 s}\n    n: 2"), "mix.0.n", "n: 1"),
        (MORE.replace("temperature: 0.7", "max_tokens: 7"), "mix.1.sampling.max_tokens", "temperature"),
        (MORE.replace("temperature: 0.7}", "temperature: 0}, n: 2"), "mix.1.sampling.temperature", "0.7"),
        (MORE.replace("type: json_object", "kind: json"), "mix.1.response_format", "json_object"),
        (MORE.replace("api: chat", "api: talk"), "mix.1.api", "correct"),
    ],
)
def test_a_mistake_in_arrivals_forms_or_traces_is_one_error(tmp_path: Path, text: str, key: str, remedy: str) -> None:
    (tmp_path / "t.csv").write_text(CSV)
    with pytest.raises(UserError) as caught:
        parse_workload(text, file=tmp_path / "w.yaml")
    assert str(caught.value.file).startswith(str(tmp_path / "w.yaml"))
    assert caught.value.key == key
    assert remedy in str(caught.value.remedy)


GOODPUT = """
name: w
requests: {prompt_tokens: 64, output_tokens: 16}
rungs: [{name: steady, concurrency: 16, requests: 120}]
goodput_search: {given}
"""


def test_a_goodput_search_is_read() -> None:
    search = "{requests: 50, duration: 10 s, start: 0.5 /s, precision: 5 %, rungs: 9, arrivals: gamma, burstiness: 0.5}"
    workload = parse_workload(GOODPUT.replace("{given}", search), file="w.yaml")
    assert workload.goodput_search == GoodputSearch(
        arrivals=GammaArrivals(rate_rps=1.0, burstiness=0.5),
        requests=50,
        duration_s=10.0,
        start_rps=0.5,
        precision=0.05,
        most_rungs=9,
    )
    assert workload.goodput_search.rung(3, 2.0) == Rung(
        name="goodput 3", arrivals=GammaArrivals(rate_rps=2.0, burstiness=0.5), requests=50, duration_s=10.0
    )


@pytest.mark.parametrize(
    ("search", "says"),
    [
        ("{arrivals: gamma}", "burstiness"),
        ("{burstiness: 2.0}", "burstiness"),
        ("{precision: 90 %}", "precision"),
        ("{start: 0 /s}", "above 0"),
        ("{requests: 3}", "requests"),
        ("{rate: 3 /s}", "unknown key"),
    ],
)
def test_a_goodput_search_that_can_t_be_meant_is_refused(search: str, says: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_workload(GOODPUT.replace("{given}", search), file="w.yaml")
    assert says in str(refused.value) and "w.yaml" in str(refused.value)


def test_a_rung_can_t_be_called_as_those_of_the_goodput_search() -> None:
    text = GOODPUT.replace("{given}", "{requests: 50}").replace("steady", "goodput 1")
    with pytest.raises(UserError, match="goodput 1"):
        parse_workload(text, file="w.yaml")
