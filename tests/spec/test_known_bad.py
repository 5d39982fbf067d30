from dataclasses import replace

import pytest
from spec_catalogue import problem

from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.known_bad import known_bad, known_bad_notices
from autotune.spec.objective import Objective
from autotune.spec.workload import ClosedLoop, FixedLength, RequestShape, Rung, Workload

DEFAULTS: dict[str, FlagValue] = {
    "enable-prefix-caching": True,
    "enable-chunked-prefill": True,
    "gpu-memory-utilization": 0.92,
    "max-num-seqs": 1024,
    "max-num-batched-tokens": 8192,
    "long-prefill-token-threshold": 0,
}


def workload(prompt: int, output: int = 100) -> Workload:
    return Workload(
        name="w",
        shapes=(RequestShape(prompt=FixedLength(tokens=prompt), output=FixedLength(tokens=output)),),
        rungs=(Rung(name="r", arrivals=ClosedLoop(concurrency=4), requests=100),),
        reference_rungs=("r",),
    )


@pytest.mark.parametrize(
    ("flags", "prompt", "kinds"),
    [
        ({}, 100, []),
        ({}, 100_000, []),
        ({"cpu-offload-gb": 10}, 1000, ["cpu offload"]),
        ({"cpu-offload-gb": 0}, 1000, []),
        ({"pipeline-parallel-size": 2}, 1000, ["pipeline for latency"]),
        ({"gpu-memory-utilization": 0.97}, 1000, ["utilization with prefix cache"]),
        ({"gpu-memory-utilization": 0.97, "enable-prefix-caching": False}, 1000, []),
        ({"gpu-memory-utilization": 0.95}, 1000, []),
        ({"max-num-seqs": 2048}, 100, ["many short requests"]),
        ({"max-num-seqs": 2048}, 5000, []),
        ({"max-num-batched-tokens": 512}, 10_000, ["tiny chunks by max-num-batched-tokens"]),
        ({"max-num-batched-tokens": 512, "enable-chunked-prefill": False}, 10_000, []),
        ({"long-prefill-token-threshold": 64}, 2000, ["tiny chunks by long-prefill-token-threshold"]),
        ({"long-prefill-token-threshold": 64}, 200, []),
    ],
)
def test_each_combination_is_known_by_its_flags_and_the_load(
    flags: dict[str, FlagValue], prompt: int, kinds: list[str]
) -> None:
    found = known_bad(flags, workload(prompt), defaults=DEFAULTS, latency=True)
    assert [one.kind for one in found] == kinds


def test_a_pipeline_is_fine_where_no_latency_counts() -> None:
    assert known_bad({"pipeline-parallel-size": 2}, workload(100), defaults=DEFAULTS, latency=False) == ()


def test_the_number_of_steps_is_said() -> None:
    (found,) = known_bad({"long-prefill-token-threshold": 64}, workload(2000), defaults=DEFAULTS, latency=True)
    assert "32 steps" in found.text


def test_of_candidates_it_is_said_once_and_of_the_users_own_each_time() -> None:
    given = replace(problem(), workload=workload(4000), defaults=DEFAULTS)
    own = EngineConfig(model="m", flags={"max-num-batched-tokens": 128, "cpu-offload-gb": 4})
    notices = known_bad_notices(given)
    assert [
        one.startswith("max-num-batched-tokens 128 with prompts of 4,000 tokens (candidates)") for one in notices
    ] == [True]
    both = known_bad_notices(replace(given, incumbent=own))
    assert ["(the incumbent)" in one for one in both] == [True, True]


def test_objectives_decide_whether_latency_counts() -> None:
    pipeline = EngineConfig(model="m", flags={"pipeline-parallel-size": 2})
    given = replace(problem(), incumbent=pipeline)
    assert len(known_bad_notices(given)) == 1
    throughput = (Objective(metric="output_tok_per_s_per_gpu", direction="maximize"),)
    assert known_bad_notices(replace(given, objectives=throughput, slos=())) == ()
