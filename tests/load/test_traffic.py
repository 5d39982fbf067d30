from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.traffic import SAFE_VOCABULARY, PlannedRequest, plan, vocabulary_of
from autotune.spec.workload import (
    Arrivals,
    ClosedLoop,
    FixedLength,
    LogNormalLength,
    Poisson,
    RequestShape,
    Rung,
    SharedPrefix,
    UniformLength,
    Workload,
)

SHORT = RequestShape(prompt=UniformLength(low=5, high=30), output=FixedLength(tokens=8))
PREFIXED = RequestShape(
    prompt=FixedLength(tokens=10), output=FixedLength(tokens=4), prefix=SharedPrefix(tokens=20, groups=3)
)


def workload(*shapes: RequestShape) -> Workload:
    return Workload(name="w", shapes=shapes, rungs=(), reference_rungs=())


def first(
    count: int, *shapes: RequestShape, seed: int = 1, rung: str = "r", arrivals: Arrivals | None = None
) -> list[PlannedRequest]:
    load = Rung(name=rung, arrivals=arrivals or ClosedLoop(concurrency=2), requests=count)
    return list(itertools.islice(plan(workload(*shapes), load, seed=seed), count))


@given(st.integers(min_value=0, max_value=2**63))
def test_the_same_seed_plans_the_same_requests(seed: int) -> None:
    again = [(r, r.prompt()) for r in first(3, SHORT, seed=seed)]
    assert [(r, r.prompt()) for r in first(3, SHORT, seed=seed)] == again


@given(st.integers(), st.integers(), st.sampled_from(["a", "b"]), st.sampled_from(["a", "b"]))
def test_another_seed_or_rung_shares_no_prompt(seed: int, other: int, rung: str, other_rung: str) -> None:
    if (seed, rung) == (other, other_rung):
        return
    long = RequestShape(prompt=FixedLength(tokens=16), output=FixedLength(tokens=1))
    mine = {tuple(r.prompt()) for r in first(4, long, seed=seed, rung=rung)}
    theirs = {tuple(r.prompt()) for r in first(4, long, seed=other, rung=other_rung)}
    assert not mine & theirs


def test_every_request_of_a_rung_has_a_prompt_of_its_own() -> None:
    prompts = {tuple(r.prompt()) for r in first(200, SHORT)}
    assert len(prompts) == 200


def test_another_process_plans_the_same_prompts() -> None:
    code = (
        "from autotune.load.traffic import PlannedRequest as P;"
        "print(P(index=3, scheduled_s=None, prompt_tokens=6, output_tokens=1, seed=5, stream='r').prompt())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    here = PlannedRequest(index=3, scheduled_s=None, prompt_tokens=6, output_tokens=1, seed=5, stream="r").prompt()
    assert json.loads(said) == here


@given(st.integers(min_value=0, max_value=40), st.integers(min_value=0, max_value=40))
def test_a_prompt_is_as_long_as_planned(own: int, prefix: int) -> None:
    shape = RequestShape(
        prompt=FixedLength(tokens=own), output=FixedLength(tokens=1), prefix=SharedPrefix(tokens=prefix)
    )
    [request] = first(1, shape)
    assert len(request.prompt()) == request.prompt_tokens == own + prefix


def test_prompts_stay_clear_of_special_tokens() -> None:
    tokens = {token for r in first(100, SHORT, PREFIXED) for token in r.prompt()}
    assert min(tokens) >= SAFE_VOCABULARY.start and max(tokens) < SAFE_VOCABULARY.stop


def test_prefixes_are_equal_within_a_group_and_differ_between_groups() -> None:
    by_group: dict[str | None, set[tuple[int, ...]]] = {}
    for request in first(60, PREFIXED):
        by_group.setdefault(request.prefix_group, set()).add(tuple(request.prompt()[:20]))
    assert [len(prefixes) for prefixes in by_group.values()] == [1, 1, 1]
    assert len(set.union(*by_group.values())) == 3


def test_a_shared_prefix_is_new_in_the_next_rung() -> None:
    mine = {tuple(r.prompt()[:20]) for r in first(20, PREFIXED, rung="a")}
    theirs = {tuple(r.prompt()[:20]) for r in first(20, PREFIXED, rung="b")}
    assert not mine & theirs


def test_shapes_are_mixed_by_their_shares() -> None:
    rare = RequestShape(prompt=FixedLength(tokens=1), output=FixedLength(tokens=1), share=1)
    common = RequestShape(prompt=FixedLength(tokens=2), output=FixedLength(tokens=1), share=3)
    drawn = [r.prompt_tokens for r in first(2000, rare, common)]
    assert drawn.count(2) / 2000 == pytest.approx(0.75, abs=0.03)


@given(st.floats(min_value=1, max_value=1e4), st.floats(min_value=0, max_value=3), st.integers(1, 50))
def test_log_normal_lengths_keep_their_bounds(median: float, sigma: float, low: int) -> None:
    lengths = LogNormalLength(median=median, sigma=sigma, low=low, high=low + 100)
    shape = RequestShape(prompt=lengths, output=FixedLength(tokens=1))
    assert all(low <= r.prompt_tokens <= low + 100 for r in first(20, shape))


def test_log_normal_lengths_have_their_median() -> None:
    shape = RequestShape(
        prompt=LogNormalLength(median=100, sigma=1.0, low=1, high=10_000), output=FixedLength(tokens=1)
    )
    drawn = [r.prompt_tokens for r in first(2000, shape)]
    assert statistics.median(drawn) == pytest.approx(100, rel=0.08)


def test_poisson_arrivals_come_at_their_rate() -> None:
    last = first(4000, SHORT, arrivals=Poisson(rate_rps=0.5))[-1]
    assert last.scheduled_s == pytest.approx(8000, rel=0.05)


def test_poisson_gaps_vary_as_much_as_their_mean() -> None:
    times = [r.scheduled_s or 0.0 for r in first(4000, SHORT, arrivals=Poisson(rate_rps=10))]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) >= 0
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1, abs=0.08)


def test_a_closed_loop_has_no_schedule() -> None:
    assert first(1, SHORT)[0].scheduled_s is None


def test_shares_that_are_all_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="shares"):
        first(1, RequestShape(prompt=FixedLength(tokens=1), output=FixedLength(tokens=1), share=0))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"vocab_size": 152_064}, range(300, 151_764)),
        ({"text_config": {"vocab_size": 2048}}, range(300, 1748)),
        ({"vocab_size": 64}, range(16, 48)),
        ({"hidden_size": 64}, SAFE_VOCABULARY),
    ],
)
def test_the_vocabulary_is_read_from_the_models_config(
    tmp_path: Path, config: dict[str, object], expected: range
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert vocabulary_of(str(tmp_path)) == expected


def test_a_model_that_is_no_folder_gets_the_safe_vocabulary() -> None:
    assert vocabulary_of("Qwen/Qwen2.5-7B") == SAFE_VOCABULARY
