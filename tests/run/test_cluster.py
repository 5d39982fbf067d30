"""Joining a running Ray cluster: two raylets on this host, one GPU (pretended) each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from simulated_problems import NO_FLAGS, Diary, new_run, problem

from autotune.errors import EnvironmentProblem
from autotune.history.reading import read_trials
from autotune.run.options import SearchOptions
from autotune.run.search import run_search

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=2, num_gpus=1)
    yield cluster.address
    ray.shutdown()
    cluster.shutdown()


def test_trials_run_on_every_node_that_has_gpus_and_leave_one_history(address: str, tmp_path: Path) -> None:
    of = problem(trials=8)
    run = new_run(tmp_path / "run", of)
    options = SearchOptions(simulate=True, address=address, time_scale=0.05, confirm=False)
    assert run_search(of, options, run=run, catalogue=NO_FLAGS, watch=Diary()) == "done"
    records = read_trials(run)
    assert sum(record.role in ("default", "search") for record in records) == 8
    assert len({(record.trial, record.attempt) for record in records}) == len(records)
    assert len({record.node for record in records}) == 2


def test_a_node_without_vllm_is_named_before_anything_starts(address: str, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    of = problem(trials=2)
    run = new_run(tmp_path / "run", of)
    options = SearchOptions(address=address, vllm_python=bare, platform="cuda")
    with pytest.raises(EnvironmentProblem, match="has no vLLM"):
        run_search(of, options, run=run, catalogue=NO_FLAGS, watch=Diary())
    assert read_trials(run) == []


def test_an_address_where_no_cluster_answers_is_an_error_of_the_environment(tmp_path: Path) -> None:
    of = problem(trials=2)
    options = SearchOptions(simulate=True, address="127.0.0.1:1")
    with pytest.raises(EnvironmentProblem, match=r"127\.0\.0\.1:1"):
        run_search(of, options, run=new_run(tmp_path / "run", of), catalogue=NO_FLAGS, watch=Diary())
