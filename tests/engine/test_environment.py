"""What the environment table says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.engine.environment import read_environment, vllm_versions
from autotune.errors import EnvironmentProblem


def test_versions_are_read_without_importing_vllm() -> None:
    assert {"vllm", "torch"} <= vllm_versions(Path(sys.executable)).keys()


def test_an_interpreter_that_is_not_there_is_an_environment_problem(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="no-python"):
        vllm_versions(tmp_path / "no-python")


def test_every_fact_is_a_text_and_no_secret_is_among_them() -> None:
    env = {"VLLM_API_KEY": "s3cret", "OMP_NUM_THREADS": "2", "HF_TOKEN": "s3cret"}
    facts = read_environment(Path(sys.executable), env=env).flat()
    assert facts["env.OMP_NUM_THREADS"] == "2"
    assert "s3cret" not in facts.values()
    assert {"version.vllm", "version.ray", "cpu_model", "cores", "kernel", "hostname", "driver"} <= facts.keys()
