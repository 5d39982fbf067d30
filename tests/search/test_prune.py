from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_problems import LATENCY, SLO, THROUGHPUT, measurement

from autotune.search.dominance import noisy_front
from autotune.search.prune import FALSE_STOPS, critical, decide
from autotune.spec.measurement import Measurement
from autotune.spec.objective import Slo
from autotune.spec.verdict import Dominated

OBJECTIVES = (THROUGHPUT, LATENCY)


def seen(throughput: float, latency: float, width: float = 0.02, **changes: object) -> Measurement:
    """A measurement whose 95 % intervals are `width` of the value to either side."""
    return measurement(
        output_tok_per_s_per_gpu=throughput,
        ttft_p99_ms=latency,
        intervals={
            THROUGHPUT.metric: (throughput * (1 - width), throughput * (1 + width)),
            LATENCY.metric: (latency * (1 - width), latency * (1 + width)),
        },
        **changes,
    )


GOOD = seen(1000, 100)


def verdict(
    mine: Measurement,
    *front: Measurement,
    looks: int = 1,
    cv: float = 0.03,
    slos: tuple[Slo, ...] = (SLO,),
    minimum: tuple[int, float] = (50, 3.0),
) -> Dominated | None:
    numbered = list(enumerate(front, start=10))
    return decide(mine, numbered, OBJECTIVES, slos, looks=looks, between_run_cv=cv, minimum=minimum)


def test_a_trial_far_worse_in_everything_is_stopped_and_says_by_whom() -> None:
    mine = seen(500, 300)
    assert verdict(mine, GOOD, seen(100, 1000)) == Dominated(by=(10,), measurement=mine)


@given(st.floats(100, 2000), st.floats(20, 400), st.integers(1, 60), st.floats(0.0, 0.1))
def test_what_is_stopped_is_no_member_of_the_noise_aware_front(
    throughput: float, latency: float, looks: int, cv: float
) -> None:
    mine = seen(throughput, latency)
    if verdict(mine, GOOD, looks=looks, cv=cv, slos=()) is not None:
        spread = 1.96 * math.hypot(0.02 / 1.96, cv)
        bounds = {
            name: [(-t * (1 + spread), -t * (1 - spread)), (ttft * (1 - spread), ttft * (1 + spread))]
            for name, t, ttft in (("mine", throughput, latency), ("good", 1000.0, 100.0))
        }
        assert noisy_front(bounds) == ["good"]


@pytest.mark.parametrize(
    "mine",
    [
        pytest.param(seen(500, 50), id="better in one objective"),
        pytest.param(seen(990, 101), id="worse within the noise"),
        pytest.param(seen(500, 300, width=1.5), id="too few requests to say"),
        pytest.param(seen(500, 300, finished=49), id="too few requests finished"),
        pytest.param(seen(500, 300, duration_s=2.9), id="too short"),
        pytest.param(seen(500, 300, rung="other"), id="another load"),
        pytest.param(measurement(output_tok_per_s_per_gpu=500.0), id="an objective is missing"),
        pytest.param(measurement(output_tok_per_s_per_gpu=500.0, ttft_p99_ms=300.0), id="no intervals"),
    ],
)
def test_a_trial_runs_on_when_it_is(mine: Measurement) -> None:
    assert verdict(mine, GOOD) is None


@pytest.mark.parametrize(
    "rival",
    [
        pytest.param(seen(1000, 100, complete=False), id="not finished"),
        pytest.param(seen(1000, 100, failed=1), id="losing requests"),
        pytest.param(measurement(output_tok_per_s_per_gpu=1000.0, ttft_p99_ms=100.0), id="without intervals"),
        pytest.param(seen(1000, 100, rung="other"), id="of another load"),
    ],
)
def test_nothing_is_stopped_by_a_rival(rival: Measurement) -> None:
    assert verdict(seen(500, 300), rival) is None


def test_nothing_is_stopped_without_a_front() -> None:
    assert verdict(seen(500, 300)) is None


def test_a_rival_that_breaks_a_limit_does_not_stop_one_that_may_keep_it() -> None:
    limit = Slo(metric="tpot_p99_ms", limit=50.0)

    def with_tpot(measured: Measurement, tpot_ms: float) -> Measurement:
        interval = {"tpot_p99_ms": (tpot_ms - 1, tpot_ms + 1)}
        return replace(measured, tpot_p99_ms=tpot_ms, intervals={**measured.intervals, **interval})

    bad = seen(500, 300)
    assert verdict(with_tpot(bad, 40.0), with_tpot(GOOD, 90.0), slos=(limit,)) is None
    assert verdict(with_tpot(bad, 90.0), with_tpot(GOOD, 90.0), slos=(limit,)) is not None
    assert verdict(with_tpot(bad, 90.0), with_tpot(GOOD, 40.0), slos=(limit,)) is not None


def test_between_run_variation_alone_can_keep_a_trial_running() -> None:
    assert verdict(seen(700, 150), GOOD, cv=0.03) is not None
    assert verdict(seen(700, 150), GOOD, cv=0.30) is None


@given(st.integers(1, 10_000), st.integers(1, 50))
def test_each_further_look_and_each_further_rival_asks_for_more(looks: int, rivals: int) -> None:
    here = critical(looks=looks, rivals=rivals)
    assert critical(looks=looks + 1, rivals=rivals) > here
    assert critical(looks=looks, rivals=rivals + 1) > here


@given(
    st.floats(10, 2000),
    st.floats(10, 2000),
    st.floats(0, 0.5),
    st.integers(1, 100),
    st.floats(1.01, 3),
    st.floats(0, 1),
)
def test_a_trial_that_was_stopped_would_be_stopped_if_it_were_worse(
    throughput: float, latency: float, width: float, looks: int, worse: float, cv: float
) -> None:
    if verdict(seen(throughput, latency, width), GOOD, looks=looks, cv=cv) is not None:
        absolute = width * throughput / 1000  # the same interval in tok/s
        assert verdict(seen(throughput / worse, latency, absolute), GOOD, looks=looks, cv=cv) is not None


@pytest.mark.timeout(20)
def test_looking_every_second_rarely_stops_a_trial_that_is_as_good() -> None:
    """The claim that the alpha spending makes, on trials whose true values equal the rival's."""
    chance = random.Random(5)
    cv, trials, stopped = 0.05, 400, 0
    for _ in range(trials):
        run_luck = [chance.gauss(1, cv), chance.gauss(1, cv), chance.gauss(1, cv), chance.gauss(1, cv)]
        rival = seen(1000 * run_luck[0], 100 * run_luck[1], 0.02)
        samples: list[tuple[float, float]] = []
        for look in range(1, 31):
            samples.append((chance.gauss(1000, 150) * run_luck[2], chance.gauss(100, 15) * run_luck[3]))
            throughput = sum(t for t, _ in samples) / len(samples)
            latency = sum(v for _, v in samples) / len(samples)
            mine = seen(throughput, latency, 1.96 * 0.15 / len(samples) ** 0.5)
            if verdict(mine, rival, looks=look, cv=cv, slos=()) is not None:
                stopped += 1
                break
    assert stopped <= trials * FALSE_STOPS


def test_a_clearly_dominated_trial_is_stopped_within_seconds_of_load() -> None:
    mine = seen(600, 180, width=0.10)
    assert verdict(mine, GOOD, looks=5, cv=0.05) is not None
