from __future__ import annotations

from dataclasses import replace

from search_problems import SERVING, TOY, WORKLOAD

from autotune.search.guesses import guesses
from autotune.spec.space import Choice, Dimension, FloatRange, Point, SearchSpace
from autotune.spec.workload import ClosedLoop, FixedLength, Poisson, RequestShape, Rung, Workload

SPACE = SearchSpace(
    name="s",
    model="m",
    dimensions=(
        Dimension(name="max-num-seqs", domain=Choice(values=(16, 64, 256, 1024))),
        Dimension(name="max-num-batched-tokens", domain=Choice(values=(1024, 2048, 8192, 32768))),
        Dimension(name="gpu-memory-utilization", domain=FloatRange(low=0.7, high=0.98)),
        Dimension(name="tensor-parallel-size", domain=Choice(values=(1, 2, 4))),
        Dimension(name="enforce-eager", domain=Choice(values=(True, False))),
        Dimension(name="kv-cache-dtype", domain=Choice(values=("auto", "fp8_e4m3"))),
        Dimension(name="block-size", domain=Choice(values=(16, 32))),
    ),
)


def workload(concurrency: int, prompt: int) -> Workload:
    return replace(
        WORKLOAD,
        shapes=(RequestShape(prompt=FixedLength(tokens=prompt), output=FixedLength(tokens=8)),),
        rungs=(Rung(name="steady", arrivals=ClosedLoop(concurrency=concurrency), requests=100),),
    )


def first(traffic: Workload, start: Point | None = None) -> Point:
    return guesses(SPACE, traffic, start=start, refused=lambda _: False)[0]


def test_as_many_sequences_as_clients_and_a_token_budget_for_the_prompts() -> None:
    assert first(workload(60, 100))["max-num-seqs"] == 64
    assert first(workload(900, 100))["max-num-seqs"] == 1024
    assert first(workload(60, 100))["max-num-batched-tokens"] == 8192
    assert first(workload(60, 16000))["max-num-batched-tokens"] == 32768


def test_what_is_cheap_to_leave_on_stays_on() -> None:
    guess = first(workload(60, 100))
    assert (guess["enforce-eager"], guess["kv-cache-dtype"], guess["tensor-parallel-size"]) == (False, "fp8_e4m3", 1)


def test_both_ends_of_parallelism_are_guessed() -> None:
    found = guesses(SPACE, workload(60, 100), start=None, refused=lambda _: False)
    assert {point["tensor-parallel-size"] for point in found} == {1, 4}


def test_a_flag_that_nobody_has_a_view_on_stays_at_its_default() -> None:
    assert first(workload(60, 100), start={"block-size": 16})["block-size"] == 16


def test_where_one_gpu_is_refused_more_are_taken() -> None:
    found = guesses(SPACE, workload(60, 100), start=None, refused=lambda p: p["tensor-parallel-size"] == 1)
    assert {point["tensor-parallel-size"] for point in found} == {2, 4}


def test_nothing_is_guessed_where_everything_is_refused() -> None:
    assert guesses(SPACE, workload(60, 100), start=None, refused=lambda _: True) == []


def test_no_guess_comes_twice_also_in_a_space_of_unknown_flags_and_an_open_loop() -> None:
    open_loop = replace(WORKLOAD, rungs=(Rung(name="steady", arrivals=Poisson(rate_rps=3.0), requests=9),))
    for space in (TOY, SERVING):
        found = guesses(space, open_loop, start=None, refused=lambda _: False)
        assert found and all(point not in found[:index] for index, point in enumerate(found))
