"""A rung that can't be used is run again in the same engine, a few times, and leaves nothing behind."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from dataclasses import replace

from autotune.engine.simulated import SimulatedLauncher
from autotune.load.simulated import SimulatedLoader
from autotune.spec.config import EngineConfig
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import LoadBlock, RequestRecord
from autotune.spec.verdict import Invalid, Measured
from autotune.spec.workload import ClosedLoop, FixedLength, RequestShape, Rung, Workload
from autotune.trial.climb import Outcome, Snapshot, climb

WORKLOAD = Workload(
    name="w",
    shapes=(RequestShape(prompt=FixedLength(tokens=50), output=FixedLength(tokens=20)),),
    rungs=(
        Rung(name="low", arrivals=ClosedLoop(concurrency=1), requests=30),
        Rung(name="high", arrivals=ClosedLoop(concurrency=8), requests=80),
    ),
    reference_rungs=("low", "high"),
)


class SpoiltLoader:
    """The simulated load, with the rungs in `spoilt` damaged as often as it says."""

    def __init__(self, spoilt: dict[str, int]) -> None:
        self.spoilt = dict(spoilt)
        self.loaded: list[tuple[str, int]] = []

    def __call__(self, endpoint: Endpoint, workload: Workload, rung: Rung, *, seed: int) -> Iterator[LoadBlock]:
        self.loaded.append((rung.name, seed))
        spoil = self.spoilt.get(rung.name, 0) > 0
        self.spoilt[rung.name] = self.spoilt.get(rung.name, 0) - 1
        for block in SimulatedLoader()(endpoint, workload, rung, seed=seed):
            records = tuple(short(record) for record in block.records) if spoil else block.records
            yield replace(block, records=records)


def short(record: RequestRecord) -> RequestRecord:
    return replace(record, output_tokens=1)


def run(spoilt: dict[str, int]) -> tuple[Outcome, SpoiltLoader, list[Snapshot]]:
    loader = SpoiltLoader(spoilt)
    snapshots: list[Snapshot] = []

    def story() -> Generator[Snapshot, None, Outcome]:
        return climb(
            EngineConfig(model="m"),
            WORKLOAD,
            name="t",
            slos=(),
            seed=5,
            devices=("0",),
            launcher=SimulatedLauncher(),
            loader=loader,
            clock=lambda: 0.0,
            cancelled=lambda: False,
        )

    going = story()
    while True:
        try:
            snapshots.append(next(going))
        except StopIteration as ended:
            outcome: Outcome = ended.value
            return outcome, loader, snapshots


def test_a_usable_trial_runs_every_rung_once() -> None:
    outcome, loader, _ = run({})
    assert [rung for rung, _ in loader.loaded] == ["warm-up", "low", "high"]
    assert isinstance(outcome.verdict, Measured)


def test_a_spoilt_rung_is_run_again_and_only_the_good_run_stays() -> None:
    outcome, loader, _ = run({"low": 1})
    assert [rung for rung, _ in loader.loaded] == ["warm-up", "low", "low", "high"]
    assert isinstance(outcome.verdict, Measured)
    assert [measurement.rung for measurement in outcome.measurements] == ["low", "high"]
    assert [requests.rung for requests in outcome.requests] == ["low", "high"]
    assert all(record.output_tokens == 20 for requests in outcome.requests for record in requests.records)


def test_the_repetition_sends_new_prompts() -> None:
    _, loader, _ = run({"low": 2})
    seeds = [seed for rung, seed in loader.loaded if rung == "low"]
    assert len(set(seeds)) == 3


def test_repetitions_cost_and_are_booked() -> None:
    once, _, _ = run({})
    again, _, _ = run({"high": 1})
    assert again.books.load_s > 1.2 * once.books.load_s


def test_a_rung_that_stays_spoilt_makes_the_trial_invalid_with_its_reasons() -> None:
    outcome, loader, _ = run({"low": 99})
    assert [rung for rung, _ in loader.loaded] == ["warm-up", "low", "low", "low"]
    assert isinstance(outcome.verdict, Invalid)
    assert outcome.verdict.reasons == (
        "low: 30 answers weren't what was asked for, the first: 1 output tokens instead of 20 (-95 %)",
    )


def test_the_limit_is_that_of_the_whole_trial() -> None:
    outcome, loader, _ = run({"low": 2, "high": 1})
    assert [rung for rung, _ in loader.loaded] == ["warm-up", "low", "low", "low", "high"]
    assert isinstance(outcome.verdict, Invalid)


def test_whoever_watches_sees_that_a_rung_is_run_again() -> None:
    _, _, snapshots = run({"high": 1})
    shown = [detail for detail, _ in itertools.groupby(s.detail for s in snapshots if s.stage == "load")]
    assert shown == ["low", "high", "high, again"]
