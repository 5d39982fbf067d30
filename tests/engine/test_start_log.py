"""Start logs as typed facts and stages, on logs that real engines wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from captured import log
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.start_log import STAGES, read_facts, stage_of_line, stage_reached
from autotune.spec.measurement import StartFacts


def test_a_gpu_start_of_0_24_gives_every_figure() -> None:
    assert read_facts(log("h200_vllm0.24_base")) == StartFacts(
        weights_gib=14.29,
        kv_cache_gib=111.38,
        kv_cache_tokens=2_085_488,
        max_concurrency=63.64,
        compile_s=18.82,
        graphs_s=7.0,
        graphs_gib=0.59,
        engine_init_s=40.07,
        vllm_version="0.24.0",
    )


def test_a_cpu_start_of_0_32_gives_what_a_cpu_has() -> None:
    assert read_facts(log("cpu_vllm0.32_eager")) == StartFacts(
        kv_cache_gib=1.0, kv_cache_tokens=2_097_152, max_concurrency=1024.0, engine_init_s=3.16, vllm_version="0.32.0"
    )


def test_an_eager_start_has_no_compile_and_graph_figures_rather_than_zeros() -> None:
    facts = read_facts(log("h200_vllm0.24_qwen72b-fp8"))
    assert (facts.compile_s, facts.graphs_s, facts.graphs_gib) == (None, None, None)
    assert facts.weights_gib == 70.15


def test_of_several_ranks_the_smallest_cache_and_the_largest_weights_count() -> None:
    text = """
(Worker_TP0 pid=1) INFO [gpu_model_runner.py:1] Model loading took 7.20 GiB memory and 1.0 seconds
(Worker_TP1 pid=2) INFO [gpu_model_runner.py:1] Model loading took 7.25 GiB memory and 1.0 seconds
(Worker_TP1 pid=2) INFO [gpu_worker.py:1] Available KV cache memory: 60.10 GiB
(Worker_TP0 pid=1) INFO [gpu_worker.py:1] Available KV cache memory: 59.90 GiB
"""
    facts = read_facts(text)
    assert (facts.weights_gib, facts.kv_cache_gib) == (7.25, 59.90)


def test_a_negative_cache_is_a_figure_too() -> None:
    assert read_facts(log("h200_vllm0.24_err-util011")).kv_cache_gib == -1.86


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("h200_vllm0.24_base", "ready"),
        ("cpu_vllm0.32_eager", "ready"),
        ("h200_vllm0.24_err-flag", "imports"),
        ("h200_vllm0.24_err-len-config", "config"),
        ("h200_vllm0.24_err-gpu-busy", "distributed"),
        ("h200_vllm0.24_err-util011", "kv_cache"),
        ("cpu_vllm0.32_err-quant-fp8", "weights"),
        ("reports/proc-06-hang", "distributed"),
        ("reports/oom-02-capture", "graphs"),
    ],
)
def test_the_stage_is_the_last_one_the_log_entered(name: str, stage: str) -> None:
    assert stage_reached(log(name)) == stage


def test_a_gpu_start_goes_through_its_stages_in_order() -> None:
    seen = [stage for line in log("h200_vllm0.24_base").splitlines() if (stage := stage_of_line(line))]
    entered = [stage for stage, before in zip(seen, [None, *seen], strict=False) if stage != before]
    expected = "config distributed weights profiling compile profiling kv_cache graphs warm_up ready"
    assert entered == expected.split()


def test_a_traceback_through_the_graph_code_is_not_graph_capture() -> None:
    assert (
        stage_of_line("(EngineCore pid=1) ERROR 11-29 [core.py:1] RuntimeError: Capturing CUDA graphs failed") is None
    )


@given(st.text())
def test_any_text_has_facts_and_a_stage(text: str) -> None:
    read_facts(text)
    assert stage_reached(text) in STAGES


def test_ben_09_a_truncated_graph_size_is_a_fact_of_the_trial() -> None:
    said = (Path(__file__).parents[1] / "fixtures" / "cases" / "BEN-09" / "warn.log").read_text()
    assert read_facts(said).graphs_truncated_to == 4
    assert read_facts(log("h200_vllm0.24_base")).graphs_truncated_to is None
