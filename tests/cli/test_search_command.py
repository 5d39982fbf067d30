"""`vtune search` as a whole: with simulated engines through real Ray, and against the vLLM that is installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

SPACE = """
name: toy
model: builtin:tiny
workload: ./toy-load.yaml
fixed: {max-model-len: from-workload, kv-cache-memory-bytes: 64M}
search:
  max-num-seqs: {min: 4, max: 128, log: true}
  max-num-batched-tokens: [128, 512, 2048]
objectives: {output_tok_per_s_per_gpu: maximize, ttft_p99: minimize}
slos: {ttft_p99: 60 s}
"""
WORKLOAD = """
name: toy-load
requests: {prompt_tokens: 64, output_tokens: 16}
rungs: [{name: steady, concurrency: 16, requests: 120}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "toy.yaml").write_text(SPACE)
    (tmp_path / "toy-load.yaml").write_text(WORKLOAD)
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "autotune.cli.main", *words]


def vtune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.ray
@pytest.mark.timeout(120)
def test_a_search_prints_plan_events_and_findings_and_leaves_a_run(folder: Path) -> None:
    ended = vtune(folder, "search", "--space", "toy.yaml", "--simulate", "--trials", "6", "--out", "run")
    assert ended.returncode == 0, ended.stderr
    for fact in ("Searched", "Estimate:", "trial 5 ", "Front", "Best per SLO", "Run:     run", "vtune best run"):
        assert fact in ended.stdout
    answer = json.loads(vtune(folder, "status", "run", "--json").stdout)
    assert (answer["state"], answer["trials"], answer["default"]["trial"]) == ("done", 6, 0)


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_an_interrupted_search_answers_exits_with_130_and_is_resumed(folder: Path) -> None:
    words = ["search", "--space", "toy.yaml", "--simulate", "--trials", "400", "--out", "run", "--json"]
    with subprocess.Popen(
        command(*words), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        assert running.stdout is not None
        for line in running.stderr:
            if "trial 3 " in line and "start" not in line:
                break
        os.kill(running.pid, signal.SIGINT)
        running.stderr.read()
        answer = json.loads(running.stdout.read())
    assert running.returncode == 130
    assert answer["state"] == "interrupted"
    before = answer["trials"]
    resumed = vtune(folder, "search", "--resume", "run", "--trials", str(before + 3), "--json")
    assert resumed.returncode == 0, resumed.stderr
    after = json.loads(resumed.stdout)
    assert (after["state"], after["trials"]) == ("done", before + 3)


@pytest.mark.engine
@pytest.mark.ray
@pytest.mark.timeout(240)
def test_a_real_engine_s_highest_rate_within_the_slos_is_found_and_recorded(folder: Path) -> None:
    space = SPACE.replace("output_tok_per_s_per_gpu", "max_rate_within_slo_rps").replace("60 s", "1 s")
    (folder / "toy.yaml").write_text(space)
    search = "goodput_search: {requests: 40, start: 10 /s, precision: 50 %, rungs: 8}"
    (folder / "toy-load.yaml").write_text(f"{WORKLOAD}{search}\n")
    ended = vtune(folder, "search", "--space", "toy.yaml", "--trials", "1", "--no-confirm", "--out", "run")
    assert ended.returncode == 0, ended.stderr
    (trial,) = pq.read_table(folder / "run" / "trials.parquet").to_pylist()
    assert trial["reference_rung"] == "steady"
    assert trial["max_rate_within_slo_rps"] >= 10
    assert 0.5 * trial["max_rate_within_slo_rps"] < trial["goodput_rps"] < 2 * trial["max_rate_within_slo_rps"]
    rungs = {row["rung"]: row for row in pq.read_table(folder / "run" / "rungs.parquet").to_pylist()}
    assert {"steady", "goodput 1", "goodput 2"} <= set(rungs)
    assert rungs["steady"]["goodput_rps"] is None and rungs["steady"]["offered_rps"] is None
    assert rungs["goodput 1"]["offered_rps"] == pytest.approx(10, rel=0.6)


@pytest.mark.engine
@pytest.mark.timeout(120)
def test_flags_and_check_read_the_vllm_that_is_installed(folder: Path) -> None:
    flags = json.loads(vtune(folder, "flags", "max-num-seqs", "--json").stdout)
    assert flags["flags"][0]["name"] == "max-num-seqs"
    began = time.monotonic()
    check = json.loads(vtune(folder, "check", "--space", "tiny-cpu", "--no-ask-vllm", "--json").stdout)
    assert check["vllm_version"] == flags["vllm_version"]
    assert time.monotonic() - began < 5  # the flags were read once and are remembered
