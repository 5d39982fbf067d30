"""What a log at rest says: hangs by where it ends, settings that weren't taken, and the memory of a good start."""

from __future__ import annotations

import pytest
from captured import log

from autotune.engine.applied import NotApplied, not_applied
from autotune.engine.log_reading import read_log


def cause(text: str) -> str | None:
    found = read_log(text).failure
    return None if found is None else found.cause


def test_a_start_that_ends_while_its_ranks_wait_for_each_other_hung_there() -> None:
    reading = read_log(log("reports/proc-06-hang"))
    assert reading.failure is not None
    assert (reading.failure.cause, reading.stage) == ("hang.startup", "distributed")
    assert reading.failure.words["waits_in"] == ("nccl_init",)
    assert reading.failure.evidence == "vLLM is using nccl==2.28"


def test_a_slow_start_that_got_there_did_not_hang() -> None:
    assert cause(log("reports/proc-06-slow_but_alive")) is None


def test_requests_that_wait_while_nothing_runs_are_a_hang() -> None:
    assert cause(log("reports/proc-07-stall")) == "hang.runtime"


@pytest.mark.parametrize(
    "stats",
    [
        "Avg generation throughput: 12.3 tokens/s, Running: 0 reqs, Waiting: 3 reqs",
        "Avg generation throughput: 0.0 tokens/s, Running: 1 reqs, Waiting: 3 reqs",
        "Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs",
    ],
)
def test_a_busy_or_an_idle_engine_does_not_hang(stats: str) -> None:
    assert cause(f"INFO: Avg prompt throughput: 0.0 tokens/s, {stats}") is None


def test_only_the_last_figures_count() -> None:
    stalled = "INFO: Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 3 reqs"
    assert cause(f"{stalled}\n{stalled.replace('Running: 0', 'Running: 3')}") is None


def test_a_start_cut_off_by_someone_never_became_ready() -> None:
    text = log("h200_vllm0.24_base")
    assert cause(text[: text.index("Available KV cache memory")]) == "hang.startup"


def test_a_piece_out_of_the_middle_is_no_failure_but_says_that_it_is_one() -> None:
    reading = read_log(log("reports/ver-03-upgrade"))
    assert reading.failure is None
    assert "ends in stage kv_cache" in reading.warnings[0]


def test_a_text_that_is_no_log_is_said_to_be_none() -> None:
    assert "nothing in this text" in read_log("Dear all,\nplease find the minutes attached.\n").warnings[0]


def test_an_error_that_a_server_answers_a_request_with_is_no_failure() -> None:
    text = "INFO: Application startup complete.\nERROR [serving.py:1] ValueError: this prompt is not supported\n"
    reading = read_log(text)
    assert reading.failure is None
    assert "outlived" in reading.warnings[0]
    assert cause(text + "ERROR [async_llm.py:1] EngineDeadError: EngineCore encountered an issue.\n") is not None


def test_a_warning_about_quality_is_passed_on() -> None:
    reading = read_log(log("reports/cfg-04-warn"))
    assert (reading.failure, reading.stage) == (None, "ready")
    assert "scaling factor 1.0" in reading.warnings[0]


ASKED = "INFO [api_utils.py:1] non-default args: {'model': 'm', 'kv_cache_dtype': 'fp8', 'enforce_eager': True}\n"
READY = "INFO: Application startup complete.\n"


@pytest.mark.parametrize(
    "runs_with",
    [
        'vllm:cache_config_info{cache_dtype="auto",block_size="16",gpu_memory_utilization="0.9"} 1.0\n',
        "INFO [core.py:1] Initializing a V1 LLM engine (v0.7) with config: kv_cache_dtype=auto, enforce_eager=True\n",
    ],
)
def test_a_setting_that_was_silently_left_out_was_not_applied(runs_with: str) -> None:
    assert not_applied(ASKED + runs_with) == (NotApplied(flag="kv-cache-dtype", asked="fp8", runs_with="auto"),)
    assert cause(ASKED + runs_with + READY) == "config.not_applied"


def test_a_longer_name_of_the_same_setting_was_applied() -> None:
    taken = (
        "INFO [core.py:1] Initializing a V1 LLM engine (v1) with config: kv_cache_dtype=fp8_e4m3, enforce_eager=True\n"
    )
    assert not_applied(ASKED + taken) == ()


@pytest.mark.parametrize(
    ("name", "band", "concurrency"),
    [
        ("h200_vllm0.24_base", "ample", 63.64),
        ("h200_vllm0.24_qwen72b-fp8", "reasonable", 22.38),
        ("h200_vllm0.24_quant-fp8", "ample", 67.15),
        ("cpu_vllm0.32_eager", "small", 1024.0),
    ],
)
def test_a_good_start_is_read_as_a_practitioner_reads_it(name: str, band: str, concurrency: float) -> None:
    capacity = read_log(log(name)).capacity
    assert capacity is not None
    assert (capacity.band, capacity.max_concurrency) == (band, concurrency)


def test_shares_are_of_the_device_where_it_is_known() -> None:
    capacity = read_log(log("h200_vllm0.24_base"), device_gib=139.8).capacity
    assert capacity is not None
    assert capacity.total_is == "device"
    assert capacity.weights_share == pytest.approx(14.29 / 139.8, abs=1e-4)
    assert capacity.kv_share == pytest.approx(111.38 / 139.8, abs=1e-4)
    assert capacity.graphs_share == pytest.approx(0.59 / 139.8, abs=1e-4)


def test_vllms_graph_estimate_gives_the_device_to_a_few_per_cent() -> None:
    capacity = read_log(log("h200_vllm0.24_base")).capacity
    assert capacity is not None
    assert capacity.total_is == "device, estimated"
    assert capacity.total_gib == pytest.approx(139.8, rel=0.04)


@pytest.mark.parametrize(
    ("kv_gib", "band"),
    [(10.0, "weights dominate"), (30.0, "small"), (50.0, "reasonable"), (65.0, "comfortable"), (75.0, "ample")],
)
def test_the_bands_are_those_of_the_guides(kv_gib: float, band: str) -> None:
    text = f"INFO Model loading took {100 - kv_gib} GiB\nINFO Available KV cache memory: {kv_gib} GiB\n"
    capacity = read_log(text, device_gib=100.0).capacity
    assert capacity is not None
    assert capacity.band == band


def test_a_log_without_a_cache_size_has_no_capacity() -> None:
    assert read_log(log("h200_vllm0.24_err-flag")).capacity is None
