"""Field cases about measurements: public reports of numbers that lied, each with its input and what must come of it.

Inputs are in tests/fixtures/cases (README.md there says which report each was taken from).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.engine.gpus import reasons_of
from autotune.engine.metrics import metric_sources, missing_metrics, parse_metrics
from autotune.engine.simulated import SimulatedLauncher
from autotune.load.findable import findable_share
from autotune.load.simulated import SimulatedLoader
from autotune.load.statistics import measure
from autotune.load.traffic import plan
from autotune.load.validity import drifted, impossible_figures, untrustworthy, unusable
from autotune.spec.config import EngineConfig
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import EngineSample, LoadBlock, Measurement, RequestRecord
from autotune.spec.verdict import Measured
from autotune.spec.workload import ClosedLoop, FixedLength, Poisson, RequestShape, Rung, Workload
from autotune.trial.climb import climb

CASES = Path(__file__).parents[1] / "fixtures" / "cases"
OPEN = Rung(name="r", arrivals=Poisson(rate_rps=10), requests=3)
CLOSED = Rung(name="r", arrivals=ClosedLoop(concurrency=1), requests=1)


def text(case: str, file: str) -> str:
    return (CASES / case / file).read_text()


def rows(case: str, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text(case, file).splitlines()]


def answered(**given: Any) -> RequestRecord:
    times = {"scheduled_s": 0.0, "sent_s": 0.0, "first_token_s": 0.1, "done_s": 0.5}
    counts = {"prompt_tokens": 10, "output_tokens": 5, "asked_prompt_tokens": 10, "asked_output_tokens": 5}
    return RequestRecord(**(times | counts | given))


def shown(rung: Rung, records: Sequence[RequestRecord], samples: Sequence[EngineSample] = ()) -> Measurement:
    return measure(
        rung,
        records,
        elapsed_s=max((r.done_s or 0.0 for r in records), default=1.0),
        sending_until_s=None,
        gpus=1,
        slos=(),
        samples=samples,
        complete=True,
    )


def workload(*, prompt: int, output: int) -> Workload:
    shape = RequestShape(prompt=FixedLength(tokens=prompt), output=FixedLength(tokens=output))
    rungs = (Rung(name="one", arrivals=ClosedLoop(concurrency=1), requests=30),)
    return Workload(name="w", shapes=(shape,), rungs=rungs, reference_rungs=("one",))


def test_ben_01_hits_where_none_were_expected_void_the_window() -> None:
    samples = [
        parse_metrics(text("BEN-01", f"metrics_{when}.txt"), at_s=at) for when, at in (("before", 0), ("after", 9))
    ]
    records = [answered(prompt_tokens=1024, asked_prompt_tokens=1024)] * 200
    rung = replace(CLOSED, requests=200)
    random = workload(prompt=1024, output=128)
    found = untrustworthy(
        rung,
        records,
        shown(rung, records, samples),
        samples=samples,
        findable_share=lambda: findable_share(random, rung, seed=0, requests=200),
    )
    assert found == (
        "96 % of the prompt tokens came from the prefix cache, these prompts share at most 0 %: "
        "the cache held them from an earlier run",
    )


def test_ben_03_an_open_loop_counts_from_the_schedule_and_shows_the_sent_time_beside_it() -> None:
    """The third request was due at 0.2 s and sent at 1.013 s: it waited 1.005 s, not 0.192 s."""
    third = rows("BEN-03", "rows.jsonl")[2]
    record = answered(
        scheduled_s=third["scheduled"], sent_s=third["sent"], first_token_s=third["first"], done_s=third["done"]
    )
    measured = shown(OPEN, [record])
    assert measured.ttft_p99_ms == pytest.approx(1005)
    assert measured.ttft_sent_p99_ms == pytest.approx(192)
    assert measured.send_lateness_p99_ms == pytest.approx(813)


def test_ben_04_a_prompt_that_drifted_is_found_by_the_servers_own_count() -> None:
    drifted = rows("BEN-04", "usage.jsonl")[1]
    counted = drifted["usage"]
    record = answered(
        prompt_tokens=counted["prompt_tokens"],
        asked_prompt_tokens=drifted["requested_input"],
        output_tokens=counted["completion_tokens"],
        asked_output_tokens=counted["completion_tokens"],
    )
    assert unusable(CLOSED, [record]) == (
        "1 answers weren't what was asked for, the first: 5828 prompt tokens instead of 10000 (-42 %)",
    )
    assert shown(CLOSED, [record]).total_tok_per_s_per_gpu == pytest.approx((5828 + 50) / 0.5)


def test_ben_04_of_prompts_sent_as_text_the_one_that_drifted_is_named() -> None:
    """8179 tokens for 8192 are what tokenizers do; 5828 for 10000 are another workload."""
    records = [
        answered(
            prompt_tokens=row["usage"]["prompt_tokens"],
            asked_prompt_tokens=None,
            about_prompt_tokens=row["requested_input"],
        )
        for row in rows("BEN-04", "usage.jsonl")
    ]
    assert unusable(replace(CLOSED, requests=2), records) == ()
    assert drifted(records[:1]) is None
    found = drifted(records)
    assert found is not None
    assert found.startswith("1 of 2 prompts")
    assert "5828 tokens instead of about 10000 (-42 %)" in found


def test_ben_04_a_chat_template_on_a_short_prompt_is_no_drift() -> None:
    assert drifted([answered(prompt_tokens=50, asked_prompt_tokens=None, about_prompt_tokens=20)]) is None


def test_ben_04_prompts_of_token_ids_cannot_drift_so_their_sum_needs_no_margin() -> None:
    exact = workload(prompt=8192, output=1024)
    request = next(plan(exact, CLOSED, seed=1))
    assert len(request.prompt()) == 8192
    assert exact.longest_request_tokens == 9216


@pytest.mark.parametrize(
    ("file", "words"),
    [("zero.json", "none of 200 requests finished"), ("survivor.json", "99 of 100 requests failed")],
)
def test_ben_06_a_run_that_lost_its_requests_is_rejected(file: str, words: str) -> None:
    said = json.loads(text("BEN-06", file))
    records = [answered()] * said["completed"] + [answered(error="HTTP 500", done_s=None)] * said["failed"]
    [reason] = unusable(replace(CLOSED, requests=len(records)), records)
    assert words in reason


def test_ben_06_a_negative_latency_is_rejected() -> None:
    figure = json.loads(text("BEN-06", "negative.json"))["mean_ttft_ms"]
    [reason] = impossible_figures(replace(shown(CLOSED, [answered()]), ttft_p50_ms=figure))
    assert reason == "impossible figures: ttft_p50_ms -1.71551e+12"


class CompilesFirst:
    """One request after the other; the very first of the warm-up, or of a measured rung, waits as long as the report
    says."""

    def __init__(self, *, in_warm_up: bool) -> None:
        self.ttft_s = [row["ttft_ms"] / 1e3 for row in rows("BEN-07", "rows.jsonl")]
        self.in_warm_up, self.compiled = in_warm_up, False
        self.runs: list[str] = []

    def __call__(self, endpoint: Endpoint, workload: Workload, rung: Rung, *, seed: int) -> Iterator[LoadBlock]:
        self.runs.append(rung.name)
        first = (rung.name == "warm-up") == self.in_warm_up and not self.compiled
        self.compiled = self.compiled or first
        for block in SimulatedLoader()(endpoint, workload, rung, seed=seed):
            yield replace(block, records=tuple(self.slowed(record, first=first) for record in block.records))

    def slowed(self, record: RequestRecord, *, first: bool) -> RequestRecord:
        usual_s = self.ttft_s[1]
        wait_s = self.ttft_s[0] if first and record.sent_s == 0 else usual_s
        begun_s = 20 * record.sent_s
        return replace(
            record,
            scheduled_s=begun_s,
            sent_s=begun_s,
            first_token_s=begun_s + wait_s,
            done_s=begun_s + wait_s + 0.1,
        )


@pytest.mark.parametrize(
    ("in_warm_up", "runs"), [(True, ["warm-up", "one"]), (False, ["warm-up", "one", "one"])], ids=["warm-up", "rung"]
)
def test_ben_07_a_compiling_first_request_is_measured_by_nobody(in_warm_up: bool, runs: list[str]) -> None:
    """Prompt 1 waited 1537 ms, the others 58 ms. In the warm-up that is what the warm-up is for; a rung that it
    happened in isn't used, the next one is."""
    ended, loader = None, CompilesFirst(in_warm_up=in_warm_up)
    going = climb(
        EngineConfig(model="m"),
        workload(prompt=50, output=20),
        name="t",
        slos=(),
        seed=1,
        devices=("0",),
        launcher=SimulatedLauncher(),
        loader=loader,
        clock=lambda: 0.0,
        cancelled=lambda: False,
    )
    while ended is None:
        try:
            next(going)
        except StopIteration as stop:
            ended = stop.value
    assert isinstance(ended.verdict, Measured)
    assert ended.verdict.measurement.ttft_p99_ms == pytest.approx(59)
    assert loader.runs == runs
    assert [one.rung for one in ended.requests] == ["one"]


NVML_BITS = {"none": 0x00, "sw_power_cap": 0x04, "hw_thermal_slowdown": 0x40}


def test_ben_08_a_window_on_a_throttled_gpu_is_flagged() -> None:
    readings = list(csv.DictReader(text("BEN-08", "nvsmi.csv").splitlines()))
    samples = [
        EngineSample(at_s=float(row["t"]), throttled_by=reasons_of(NVML_BITS[row["throttle"]])) for row in readings
    ]
    found = untrustworthy(CLOSED, [answered()], shown(CLOSED, [answered()]), samples=samples)
    assert found == ("GPU clocks were throttled in 1 of 3 readings: hw_thermal_slowdown",)


def test_ben_10_preemptions_are_in_the_measurement() -> None:
    after = parse_metrics(text("BEN-10", "metrics.txt"), at_s=9)
    measured = shown(CLOSED, [answered()], [replace(after, at_s=0.0, preemptions=0.0), after])
    assert (measured.preemptions, measured.kv_cache_usage_max) == (101, 0.998)


BEGUN = EngineSample(at_s=0, inter_token_s=0, inter_tokens=0)


@pytest.mark.parametrize(
    ("file", "usage", "gaps"),
    [
        ("old.txt", "vllm:gpu_cache_usage_perc", "vllm:time_per_output_token_seconds"),
        ("both.txt", "vllm:kv_cache_usage_perc", "vllm:inter_token_latency_seconds"),
        ("new.txt", "vllm:kv_cache_usage_perc", "vllm:inter_token_latency_seconds"),
    ],
)
def test_ver_02_a_renamed_metric_is_read_once_under_one_of_its_names(file: str, usage: str, gaps: str) -> None:
    measured = shown(CLOSED, [answered()], [BEGUN, parse_metrics(text("VER-02", file), at_s=9)])
    assert measured.kv_cache_usage_max == 0.42
    assert measured.engine_itl_mean_ms == pytest.approx(12)
    sources = metric_sources(text("VER-02", file))
    assert sources["kv_cache_usage"] == usage
    assert (sources["inter_token_s"], sources["inter_tokens"]) == (f"{gaps}_sum", f"{gaps}_count")


def test_ver_02_a_metric_that_is_gone_is_unknown_not_zero_and_warned_of() -> None:
    page = text("VER-02", "none.txt")
    measured = shown(CLOSED, [answered()], [parse_metrics(page, at_s=at) for at in (0, 9)])
    assert (measured.running_max, measured.kv_cache_usage_max, measured.engine_itl_mean_ms) == (3, None, None)
    warning = missing_metrics(metric_sources(page))
    assert warning is not None
    assert "kv_cache_usage (looked for vllm:kv_cache_usage_perc, vllm:gpu_cache_usage_perc)" in warning
    assert "running" not in warning
