"""The catalogue of the vLLM that is installed here, and the shipped spaces against it."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.engine.catalogue import read_catalogue
from autotune.spec.catalogue import Catalogue, UnknownFlag
from autotune.spec.flag_changes import REPLACED
from autotune.spec.shipped import shipped_spaces, shipped_workloads
from autotune.spec.space_file import load_problem

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

GPU_SPACES = ("7b", "32b", "72b", "72b-fp8", "moe-30b")
COVERED = {
    "gpu-memory-utilization",
    "max-num-seqs",
    "max-num-batched-tokens",
    "enable-chunked-prefill",
    "long-prefill-token-threshold",
    "kv-cache-dtype",
    "tensor-parallel-size",
    "enforce-eager",
    "compilation-config.cudagraph_mode",
    "max-cudagraph-capture-size",
    "enable-prefix-caching",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalogue]:
    """Read by vLLM itself, not from this user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield read_catalogue(Path(sys.executable))


def test_every_flag_is_read_with_its_type_and_default(installed: Catalogue) -> None:
    assert len(installed.flags) > 200
    seqs, utilization = installed.flags["max-num-seqs"], installed.flags["gpu-memory-utilization"]
    assert (seqs.kind, utilization.kind, utilization.default) == ("int", "float", 0.92)
    assert isinstance(seqs.default, int)  # the parser says None; the engine's configuration knows
    assert installed.flags["enable-chunked-prefill"].default is True
    assert "fp8" in installed.flags["kv-cache-dtype"].choices
    assert installed.flags["max-num-batched-tokens"].human
    assert installed.flags["max-model-len"].default is None


def test_the_keys_of_json_flags_are_read_with_their_choices(installed: Catalogue) -> None:
    keys = installed.flags["compilation-config"].keys
    assert keys is not None
    assert {"NONE", "PIECEWISE", "FULL"} <= set(keys["cudagraph_mode"].choices)


def test_the_servers_own_flags_are_known_and_not_searchable(installed: Catalogue) -> None:
    assert {"port", "host", "api-key"} <= installed.server_flags
    assert not installed.server_flags & set(installed.flags)


def test_flags_said_to_be_gone_are_gone_and_what_replaces_them_is_there(installed: Catalogue) -> None:
    for name, remedy in REPLACED.items():
        with pytest.raises(UnknownFlag):
            installed.find(name)
        for replacement in re.findall(r"\buse ([a-z][\w.-]+)", remedy):
            installed.find(replacement)


@pytest.mark.parametrize("workload", [one.name for one in shipped_workloads()])
@pytest.mark.parametrize("space", [one.name for one in shipped_spaces()])
def test_every_shipped_space_loads_with_every_shipped_workload(installed: Catalogue, space: str, workload: str) -> None:
    pinned = load_problem(space, catalogue=installed, workload=workload)
    everything = load_problem(space, catalogue=installed, workload=workload, allow_quality_loss=True)
    assert len(everything.space.dimensions) == len(pinned.space.dimensions) + len(pinned.pinned)
    assert pinned.space.fixed["max-model-len"] >= pinned.workload.longest_request_tokens  # type: ignore[operator]


@pytest.mark.parametrize("space", GPU_SPACES)
def test_a_gpu_space_covers_what_people_tune(installed: Catalogue, space: str) -> None:
    problem = load_problem(space, catalogue=installed, allow_quality_loss=True)
    names = {dimension.name for dimension in problem.space.dimensions}
    assert names >= COVERED
    assert names & {"quantization", "weights"}
    assert {"kv-cache-dtype"} <= {dimension.name for dimension in problem.space.dimensions if dimension.gated}


def test_the_cpu_space_pins_nothing_and_its_defaults_lie_in_it(installed: Catalogue) -> None:
    problem = load_problem("tiny-cpu", catalogue=installed)
    assert problem.pinned == ()
    assert problem.space.broken_rule(problem.space.default(), problem.defaults) is None
    assert problem.budget.trials == 24
