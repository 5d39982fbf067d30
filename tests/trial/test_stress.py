"""What a configuration is put under at the end of its confirmation, and what becomes of one that doesn't bear it."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.simulated import SimulatedLauncher
from autotune.load.simulated import SimulatedLoader
from autotune.load.traffic import plan
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.trace import Trace, TraceRequest
from autotune.spec.verdict import Infeasible, Measured
from autotune.spec.workload import (
    STRESS,
    Arrivals,
    ClosedLoop,
    Conversation,
    FixedLength,
    GoodputSearch,
    Poisson,
    RequestForm,
    RequestShape,
    Rung,
    SharedPrefix,
    UniformLength,
    Workload,
)
from autotune.trial.climb import Outcome, Snapshot, climb
from autotune.trial.stress import CHAT_SHARE, MOST_SEQUENCES, concurrency, longest_shape, stressed

SHORT = RequestShape(prompt=UniformLength(low=10, high=60), output=UniformLength(low=5, high=20))
LONG = RequestShape(prompt=UniformLength(low=50, high=300), output=FixedLength(tokens=40), share=3.0)


def config(**flags: FlagValue) -> EngineConfig:
    return EngineConfig(model="m", flags={name.replace("_", "-"): value for name, value in flags.items()})


def workload(*shapes: RequestShape, arrivals: Arrivals | None = None, trace: Trace | None = None) -> Workload:
    return Workload(
        name="w",
        shapes=shapes or (() if trace else (SHORT,)),
        rungs=(
            Rung(name="calm", arrivals=ClosedLoop(concurrency=4) if arrivals is None else arrivals, requests=30),
            Rung(name="busy", arrivals=ClosedLoop(concurrency=8) if arrivals is None else arrivals, requests=60),
        ),
        reference_rungs=("busy",),
        trace=trace,
    )


# ---------------------------------------------------------------- how much at once


@pytest.mark.parametrize(
    ("flags", "arrivals", "seen", "at_once"),
    [
        ({}, None, None, 10),  # the workload's highest concurrency
        ({"max_num_seqs": 128}, None, 8.0, 160),  # what the flags let in
        ({"max_num_seqs": 4}, None, None, 10),  # the rest waits, as it would in use
        ({"max_num_seqs": 100_000}, None, None, 1280),
        ({}, Poisson(rate_rps=5), 20.0, 50),  # bursts go beyond what was seen
        ({"max_num_seqs": 64}, Poisson(rate_rps=5), 20.0, 80),
        ({}, Poisson(rate_rps=5), None, 20),
    ],
)
def test_the_peak_is_that_of_the_flags_or_the_workload_with_margin(
    flags: dict[str, FlagValue], arrivals: Arrivals | None, seen: float | None, at_once: int
) -> None:
    assert concurrency(workload(arrivals=arrivals), config(**flags), seen_running=seen) == at_once


def test_a_goodput_search_is_an_open_loop_too() -> None:
    searching = replace(workload(), goodput_search=GoodputSearch())
    assert concurrency(searching, config(), seen_running=40.0) == 100
    assert stressed(searching, config(), seen_running=40.0).goodput_search is None


@given(st.none() | st.integers(1, 10**6), st.none() | st.floats(0, 10**4), st.booleans())
def test_never_less_than_the_workload_and_never_absurdly_much(
    limit: int | None, seen: float | None, is_open: bool
) -> None:
    arrivals = Poisson(rate_rps=1.0) if is_open else None
    found = concurrency(workload(arrivals=arrivals), config(max_num_seqs=limit), seen_running=seen)
    assert found >= (1 if is_open else 8)
    assert found <= 1.25 * MOST_SEQUENCES


# ---------------------------------------------------------------- of what


def test_half_of_the_requests_are_as_the_workload_has_them_and_half_as_long_as_it_gets() -> None:
    made = stressed(workload(SHORT, LONG), config(max_num_seqs=800), seen_running=None)
    (rung,) = made.rungs
    assert (rung.name, rung.arrivals, rung.requests) == (STRESS, ClosedLoop(concurrency=1000), 2000)
    sent = list(itertools.islice(plan(made, rung, seed=1), rung.requests))
    full = [request for request in sent if (request.prompt_tokens, request.output_tokens) == (300, 40)]
    assert 0.45 < len(full) / len(sent) < 0.55
    assert {request.output_tokens for request in sent} >= {5, 20, 40}
    assert made.longest_request_tokens == workload(SHORT, LONG).longest_request_tokens


def test_a_conversations_longest_request_is_its_last_turn_in_one_piece() -> None:
    talk = RequestShape(
        prompt=FixedLength(tokens=30),
        output=UniformLength(low=5, high=10),
        conversation=Conversation(turns=UniformLength(low=1, high=4)),
        prefix=SharedPrefix(tokens=100),
    )
    shape = longest_shape(workload(talk))
    assert (shape.prompt, shape.output) == (FixedLength(tokens=150), FixedLength(tokens=10))
    assert shape.conversation is None
    assert shape.longest_tokens == talk.longest_tokens


def test_a_chats_longest_prompt_leaves_room_for_what_its_template_adds() -> None:
    chat = RequestShape(prompt=FixedLength(tokens=1000), output=FixedLength(tokens=10), form=RequestForm(chat=True))
    assert longest_shape(workload(chat)).prompt == FixedLength(tokens=round(1000 * CHAT_SHARE))


def test_of_a_trace_the_longest_rows_and_others_are_sent_in_turn_each_once() -> None:
    rows = tuple(TraceRequest(at_s=float(n), prompt_tokens=n + 1, output_tokens=1, line=n) for n in range(100))
    trace = Trace(file="t", format="azure", rows=rows)
    made = stressed(workload(trace=trace, arrivals=Poisson(rate_rps=5)), config(max_num_seqs=16), seen_running=None)
    assert made.trace is not None
    lines = [row.line for row in made.trace.rows]
    assert len(lines) == len(set(lines)) == made.rungs[0].requests == 40
    assert set(lines[::2]) == set(range(80, 100))
    assert lines[1::2] == list(range(20))


def test_a_trace_of_one_row_is_sent_again_and_again() -> None:
    row = TraceRequest(at_s=0.0, prompt_tokens=5, output_tokens=1, line=1)
    trace = Trace(file="t", format="azure", rows=(row,))
    made = stressed(workload(trace=trace), config(), seen_running=None)
    assert made.trace == trace


# ---------------------------------------------------------------- in a trial


def trial(launcher: SimulatedLauncher, *, stress: bool = True, cut_after: int = 10**9, **flags: FlagValue) -> Outcome:
    """`cut_after`: snapshots of the stress after which it is cancelled."""
    seen = 0

    def story() -> Generator[Snapshot, None, Outcome]:
        return climb(
            config(**flags),
            workload(),
            name="t",
            slos=(),
            seed=5,
            devices=("0",),
            launcher=launcher,
            loader=SimulatedLoader(),
            clock=lambda: 0.0,
            cancelled=lambda: seen >= cut_after,
            stress=stress,
        )

    going = story()
    while True:
        try:
            seen += next(going).detail == STRESS
        except StopIteration as ended:
            outcome: Outcome = ended.value
            return outcome


ROOMY, TIGHT = SimulatedLauncher(), SimulatedLauncher(unforeseen_gib_per_1k_seqs=100.0)


def test_the_stress_comes_last_and_changes_nothing_that_is_compared() -> None:
    with_it, without = trial(ROOMY, max_num_seqs=64), trial(ROOMY, stress=False, max_num_seqs=64)
    assert [m.rung for m in with_it.measurements] == ["calm", "busy", STRESS]
    assert with_it.measurements[:2] == without.measurements
    assert with_it.verdict == without.verdict
    assert with_it.measurements[-1].concurrency == 80
    assert with_it.measurements[-1].finished == with_it.measurements[-1].requests == 160
    assert with_it.books.load_s > without.books.load_s


def test_an_engine_that_dies_of_the_stress_is_infeasible_and_keeps_what_it_had_shown() -> None:
    outcome, calm = trial(TIGHT, max_num_seqs=128), trial(TIGHT, stress=False, max_num_seqs=128)
    assert isinstance(outcome.verdict, Infeasible)
    assert outcome.verdict.cause == "oom.runtime"
    assert isinstance(calm.verdict, Measured)
    assert outcome.verdict.measurement == calm.verdict.measurement
    assert outcome.measurements[:2] == calm.measurements
    last = outcome.measurements[-1]
    assert (last.rung, last.complete, last.finished < last.requests) == (STRESS, False, True)
    assert [requests.rung for requests in outcome.requests] == ["calm", "busy", STRESS]


def test_an_engine_that_dies_before_the_stress_has_no_measurement_to_keep() -> None:
    outcome = trial(SimulatedLauncher(unforeseen_gib_per_1k_seqs=2000.0))
    assert isinstance(outcome.verdict, Infeasible)
    assert outcome.verdict.measurement is None
    assert STRESS not in [m.rung for m in outcome.measurements]


def test_a_stress_that_is_cut_short_leaves_no_verdict() -> None:
    outcome = trial(ROOMY, cut_after=1, max_num_seqs=64)
    assert outcome.verdict is None
    assert not outcome.measurements[-1].complete
