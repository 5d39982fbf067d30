"""The cause of a failed start, on logs of real failures and on lines from public reports."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from captured import LOGS, log
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.failure import classify, first_failure
from autotune.engine.failure_classes import REMEDIES, remedy
from autotune.engine.failure_rules import RULES
from autotune.spec.verdict import Bound, Broken, EngineFailure, Infeasible
from autotune.trial.climb import failed

FAILURES = {
    "h200_vllm0.24_err-flag": "config.invalid",
    "h200_vllm0.24_err-len-config": "config.invalid",
    "h200_vllm0.24_err-len-kv": "capacity.kv_too_small",
    "h200_vllm0.24_err-util011": "capacity.no_kv_blocks",
    "h200_vllm0.24_err-gpu-busy": "infra.gpu_busy",
    "cpu_vllm0.32_err-block-size": "config.unsupported",
    "cpu_vllm0.32_err-cache": "infra.cache",
    "cpu_vllm0.32_err-flag": "config.invalid",
    "cpu_vllm0.32_err-host-busy": "infra.gpu_busy",
    "cpu_vllm0.32_err-kv-bytes": "capacity.no_kv_blocks",
    "cpu_vllm0.32_err-len-config": "config.invalid",
    "cpu_vllm0.32_err-no-blocks": "capacity.no_kv_blocks",
    "cpu_vllm0.32_err-quant-fp8": "config.unsupported",
    "reports/cap-01-v0": "capacity.kv_too_small",
    "reports/cap-01-v1_no_estimate": "capacity.kv_too_small",
    "reports/cap-01-v1_estimate": "capacity.kv_too_small",
    "reports/cap-03-neg": "capacity.no_kv_blocks",
    "reports/cap-04-a": "infra.gpu_busy",
    "reports/cap-04-b": "infra.gpu_busy",
    "reports/cap-06-mamba": "capacity.state_blocks",
    "reports/cfg-02-sel": "config.unsupported",
    "reports/oom-01-sampler": "oom.sampler_warmup",
    "reports/oom-02-capture": "oom.graph_capture",
    "reports/oom-03-runtime": "oom.runtime",
    "reports/oom-05-raylet": "infra.host_oom",
    "reports/par-03-err": "config.unsupported",
    "reports/par-04-trace": "config.unsupported",
    "reports/proc-04-race": "infra.port_race",
    "reports/ray-01-mig": "config.unsupported",
    "reports/rep-04-cache": "infra.cache",
    "reports/rep-04-hf": "infra.hub",
    "reports/ver-01-err1": "config.invalid",
}
HARMLESS = [
    "cpu_vllm0.32_eager",
    "h200_vllm0.24_base",
    "h200_vllm0.24_base-warm",
    "h200_vllm0.24_kv-fp8",
    "h200_vllm0.24_quant-fp8",
    "h200_vllm0.24_qwen72b-fp8",
    "h200_vllm0.24_small-batch",
    "reports/cfg-04-warn",
    "reports/proc-06-hang",
    "reports/proc-06-slow_but_alive",
    "reports/proc-07-stall",
    "reports/ver-03-upgrade",
]


def failure(text: str, *, device_gib: float | None = None) -> EngineFailure:
    found = first_failure(text, device_gib=device_gib)
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "cause"), FAILURES.items())
def test_a_failed_start_has_its_class(name: str, cause: str) -> None:
    assert failure(log(name)).cause == cause


@pytest.mark.parametrize("name", HARMLESS)
def test_a_log_without_a_failure_has_none_whatever_its_warnings_say(name: str) -> None:
    assert first_failure(log(name)) is None


def test_every_captured_log_has_an_expected_class() -> None:
    files = {path.name.partition(".log")[0] for path in LOGS.glob("*.log*")}
    files |= {f"reports/{path.stem}" for path in (LOGS / "reports").glob("*.log")}
    assert files == {*FAILURES, *HARMLESS, "reports/cfg-05-errors"}


def test_four_errors_of_one_study_are_four_classes() -> None:
    causes = [failure(part).cause for part in log("reports/cfg-05-errors").split("---")]
    assert causes == ["config.unsupported", "env.missing_dependency", "config.invalid", "config.conflict"]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "ValueError: max_num_batched_tokens (512) must be greater than or equal to max_num_seqs (1024).",
            "config.conflict",
        ),
        (
            "  Value error, max_num_batched_tokens (2048) is smaller than max_model_len (40960). This effectively"
            " limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences.",
            "config.conflict",
        ),
        (
            "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (3).",
            "config.unsupported",
        ),
        ("api_server.py: error: argument --dtype: invalid choice: 'fp7' (choose from 'auto')", "config.invalid"),
        ("api_server.py: error: argument --max-num-seqs: invalid int value: 'x'", "config.invalid"),
        (
            "AssertionError: Error in memory profiling. Initial free memory 20.1 GiB, current free memory 39.5 GiB."
            " This happens when other processes sharing the same container release GPU memory while vLLM is profiling",
            "infra.profiling_race",
        ),
        ("OSError: [Errno 98] Address already in use", "infra.port_race"),
        # As vLLM 0.32 words them (vllm/config, vllm/engine/arg_utils.py, vllm/v1).
        ("ValueError: Cannot set both `pooling_type` and `seq_pooling_type`", "config.conflict"),
        ("ValueError: --mamba-block-size can only be set with --enable-prefix-caching", "config.conflict"),
        ("ValueError: speculative_max_model_len=9 cannot be larger than draft_max_model_len=8", "config.conflict"),
        ("ValueError: `--nnodes 2` requires `--data-parallel-backend mp`", "config.conflict"),
        ("ValueError: Adaptive verification is not currently compatible with LoRA", "config.conflict"),
        (
            "ValueError: Chunked MM input disabled but max_tokens_per_mm_item (9000) is larger than"
            " max_num_batched_tokens (8192). Please increase max_num_batched_tokens.",
            "config.conflict",
        ),
        ("ValueError: fp4 quantization is currently not supported in xpu.", "config.unsupported"),
        ("RuntimeError: FlashAttention only support fp16 and bf16 data type", "config.unsupported"),
        ("ValueError: Model Runner V2 requires Triton.", "config.unsupported"),
        ("ValueError: Selected backend X is not valid for this configuration. Reason: y", "config.unsupported"),
        (
            "ValueError: World size (4) is larger than the number of available GPUs (2) in this node.",
            "config.unsupported",
        ),
        ("ValueError: max_model_len must be a positive integer, got 0: int.", "config.invalid"),
        ("ValueError: Unknown dtype: fp7", "config.invalid"),
        ("ValueError: Invalid compilation mode: 9. Valid modes are: 0, 1", "config.invalid"),
        (
            "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token.",
            "capacity.no_kv_blocks",
        ),
        ("RuntimeError: No CUDA GPUs are available", "infra.gpu_busy"),
        ("(raylet) node_manager.cc:3069: 1 Workers (tasks / actors) killed due to memory pressure", "infra.host_oom"),
        ("OSError: nowhere/model is not a local folder and is not a valid model identifier", "config.invalid"),
    ],
)
def test_single_lines_have_their_class(line: str, cause: str) -> None:
    assert failure(line).cause == cause


def test_the_evidence_is_the_first_specific_line_not_the_last() -> None:
    found = failure(log("reports/oom-01-sampler"))
    assert found.evidence.startswith("RuntimeError: CUDA out of memory occurred when warming up sampler")
    assert found.facts["max_num_seqs"] == 256


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("reports/cap-01-v0", {"kv_cache_tokens": 7344, "max_model_len": 32768}),
        ("reports/cap-01-v1_no_estimate", {"needed_gib": 24.0, "available_gib": 9.97}),
        ("reports/cap-01-v1_estimate", {"max_model_len_bound": 34736}),
        ("reports/cap-03-neg", {"available_gib": -1.54}),
        ("reports/cap-06-mamba", {"max_num_seqs_bound": 600}),
        ("h200_vllm0.24_err-len-kv", {"max_model_len_bound": 719_888, "needed_gib": 53.41, "available_gib": 38.45}),
        ("h200_vllm0.24_err-gpu-busy", {"free_gib": 9.36, "device_gib": 139.8, "wanted_gib": 128.62}),
    ],
)
def test_numbers_in_the_message_become_facts(name: str, facts: dict[str, float]) -> None:
    assert facts.items() <= failure(log(name)).facts.items()


def test_shortfall_is_the_missing_share_of_the_device() -> None:
    assert failure(log("h200_vllm0.24_err-len-kv"), device_gib=139.8).shortfall == pytest.approx(
        (53.41 - 38.45) / 139.8
    )
    assert failure(log("reports/cap-03-neg"), device_gib=22.0).shortfall == pytest.approx(1.54 / 22)
    assert failure(log("reports/oom-03-runtime")).shortfall == pytest.approx((20.0 - 19.88) / 1024 / 79.10)


def test_shortfall_is_zero_where_the_device_or_the_gap_is_unknown() -> None:
    assert failure(log("reports/cap-01-v1_estimate")).shortfall == 0
    assert failure(log("reports/cap-06-mamba"), device_gib=80.0).shortfall == 0


def bounds(name: str, *, device_gib: float | None = None) -> list[dict[str, object]]:
    found = failure(log(name), device_gib=device_gib).bounds
    return [{key: value for key, value in asdict(bound).items() if value is not None} for bound in found]


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("reports/cap-01-v0", {"flag": "max-model-len", "at_most": 7344}),
        (
            "reports/cap-01-v1_no_estimate",
            {"flag": "max-model-len", "at_most": 435_595},
        ),  # 9.97 / 24.00 of what was asked
        ("reports/cap-01-v1_estimate", {"flag": "max-model-len", "at_most": 34736}),
        ("reports/cap-03-neg", {"flag": "gpu-memory-utilization", "raise_by_gib": 1.54}),
        ("reports/cap-06-mamba", {"flag": "max-num-seqs", "at_most": 600}),
        ("reports/oom-01-sampler", {"flag": "max-num-seqs", "below": 256}),
        (
            "reports/cap-04-a",
            {"flag": "gpu-memory-utilization", "at_most": 0.7494, "when": "the memory stays taken"},
        ),
        ("reports/par-03-err", {"flag": "dtype", "one_of": ("float16",), "when": "quantization is awq"}),
        (
            "reports/par-04-trace",
            {"flag": "pipeline-parallel-size", "at_most": 1, "when": "speculative-config is given"},
        ),
        ("reports/ver-01-err1", {"flag": "disable-log-requests", "unknown": True}),
        ("h200_vllm0.24_err-len-config", {"flag": "max-model-len", "at_most": 32768}),
        ("h200_vllm0.24_err-len-kv", {"flag": "max-model-len", "at_most": 719_888}),
    ],
)
def test_numbers_and_names_become_bounds(name: str, bound: dict[str, object]) -> None:
    assert bounds(name)[0] == bound


def test_a_value_that_every_backend_rejects_is_dead_and_one_that_some_take_is_bound_to_them() -> None:
    assert bounds("reports/cfg-02-sel") == [
        {"flag": "block-size", "none_of": ("106",)},
        {"flag": "attention-backend", "one_of": ("FLASHINFER", "TRITON_ATTN"), "when": "kv-cache-dtype is fp8"},
    ]


def test_missing_memory_becomes_a_least_utilization_where_share_and_device_are_known() -> None:
    (bound,) = bounds("h200_vllm0.24_err-util011", device_gib=139.8)
    assert bound == {"flag": "gpu-memory-utilization", "above": pytest.approx(0.11 + 1.86 / 139.8, abs=1e-4)}
    assert bounds("h200_vllm0.24_err-util011", device_gib=2.0) == []  # no share of this device would do
    lower, weights = bounds("reports/cap-03-neg", device_gib=22.1)
    assert lower["raise_by_gib"] == 1.54
    assert weights["above"] == pytest.approx(14.29 / 22.1, abs=1e-4)


def test_without_speculation_pipeline_parallelism_itself_is_bounded() -> None:
    found = failure("NotImplementedError: Pipeline parallelism is not supported for this model.")
    assert [(bound.flag, bound.at_most, bound.when) for bound in found.bounds] == [("pipeline-parallel-size", 1, None)]


def test_what_torch_ran_out_of_memory_for_is_what_vllm_raises_from_it() -> None:
    text = (
        "INFO GPU KV cache size: 1,000 tokens\n"
        "ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.\n"
        "ERROR RuntimeError: CUDA out of memory occurred when warming up sampler with 64 dummy requests."
    )
    assert failure(text).cause == "oom.sampler_warmup"


def test_a_log_that_begins_with_the_traceback_has_its_stage_from_vllms_functions() -> None:
    text = '  File "gpu_model_runner.py", line 9, in profile_run\ntorch.OutOfMemoryError: CUDA out of memory.'
    assert failure(text).cause == "oom.profiling"


@pytest.mark.parametrize(
    ("cause", "again"),
    [("infra.gpu_busy", True), ("infra.hub", True), ("infra.cancelled", False), ("env.missing_dependency", False)],
)
def test_only_what_may_be_gone_the_next_time_is_worth_a_retry(cause: str, again: bool) -> None:
    assert EngineFailure(stage="imports", cause=cause, evidence="").worth_a_retry == again


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("reports/cap-01-v1_estimate", "max-model-len at most 34736"),
        ("reports/ver-01-err1", "requests aren't logged unless enable-log-requests is given"),
        ("h200_vllm0.24_err-flag", "this vLLM has no flag no-such-flag"),
    ],
)
def test_a_remedy_says_what_the_failure_itself_says(name: str, words: str) -> None:
    assert words in remedy(failure(log(name)))


def test_a_missing_package_is_named() -> None:
    assert remedy(failure(log("reports/cfg-05-errors").split("---")[1])).endswith("arctic-inference==0.1.1")


def test_a_trial_that_could_not_run_carries_the_bounds_and_one_that_may_run_does_not() -> None:
    found = failure(log("reports/cap-06-mamba"))
    verdict = failed(found)
    assert isinstance(verdict, Infeasible)
    assert verdict.bounds == found.bounds != ()
    assert isinstance(failed(failure(log("reports/cap-04-a"))), Broken)


def test_a_bound_survives_being_written() -> None:
    for name in ("reports/cfg-02-sel", "reports/cap-01-v0", "reports/ver-01-err1"):
        for bound in failure(log(name)).bounds:
            assert Bound.read(json.loads(json.dumps(bound.form()))) == bound


def test_a_busy_gpu_says_nothing_about_the_configuration() -> None:
    busy = failure(log("reports/cap-04-a"))
    assert not busy.blames_configuration
    assert busy.shortfall == 0


def test_out_of_memory_while_loading_is_of_the_weights() -> None:
    text = "INFO Starting to load model m...\n(EngineCore pid=1) ERROR torch.OutOfMemoryError: CUDA out of memory."
    assert failure(text).cause == "oom.weights"


def test_a_silent_end_by_sigkill_is_taken_for_the_hosts_memory() -> None:
    assert classify("INFO nothing wrong\n", exit_code=-9, stage="weights").cause == "infra.host_oom"


def test_an_unknown_error_keeps_its_line_and_exit_code() -> None:
    text = "INFO fine\nKeyError: 'layers.0'\nRuntimeError: Engine core initialization failed. See root cause above."
    found = classify(text, exit_code=1, stage="weights")
    assert (found.cause, found.evidence, found.exit_code) == ("unknown", "KeyError: 'layers.0'", 1)


def test_every_class_has_a_remedy_and_is_in_the_documentation() -> None:
    documented = set(
        re.findall(r"^\| `([a-z_.]+)`", (Path(__file__).parents[2] / "docs/failures.md").read_text(), re.M)
    )
    assert documented == set(REMEDIES)
    assert {rule.cause for rule in RULES} - {"oom"} <= set(REMEDIES)


@given(st.text())
def test_any_text_can_be_classified(text: str) -> None:
    assert classify(text, exit_code=1, stage="imports").cause in REMEDIES
