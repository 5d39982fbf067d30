from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.live import LIVE_FLAGS, LiveSplit
from autotune.spec.space import Choice, Dimension, IntRange, SearchSpace

DEFAULTS: dict[str, FlagValue] = {"max-num-seqs": 256, "max-num-batched-tokens": 8192}
SPACE = SearchSpace(
    name="s",
    model="m",
    dimensions=(
        Dimension(name="max-num-seqs", domain=Choice(values=(64, 512))),
        Dimension(name="max-num-batched-tokens", domain=IntRange(low=1024, high=16384)),
        Dimension(name="kv-cache-dtype", domain=Choice(values=("auto", "fp8"))),
    ),
)
SPLIT = LiveSplit.of(SPACE, DEFAULTS)

flags = st.fixed_dictionaries(
    {},
    optional={
        "max-num-seqs": st.integers(1, 1024),
        "max-num-batched-tokens": st.integers(1024, 32768),
        "enable-chunked-prefill": st.booleans(),
        "enable-prefix-caching": st.booleans(),
        "long-prefill-token-threshold": st.integers(0, 512),
        "scheduling-policy": st.sampled_from(["fcfs", "priority"]),
        "kv-cache-dtype": st.sampled_from(["auto", "fp8"]),
        "block-size": st.sampled_from([16, 32]),
    },
)


def engine(**given: FlagValue) -> EngineConfig:
    return EngineConfig(model="m", flags={name.replace("_", "-"): value for name, value in given.items()})


@given(flags)
def test_an_engine_that_is_started_for_a_candidate_reaches_it(given: dict[str, FlagValue]) -> None:
    config = EngineConfig(model="m", flags=given)
    assert SPLIT.reaches(SPLIT.start_for(config), config)


@given(flags, flags)
def test_only_engines_with_the_same_launch_flags_are_reached(
    one: dict[str, FlagValue], two: dict[str, FlagValue]
) -> None:
    if SPLIT.reaches(EngineConfig(model="m", flags=one), EngineConfig(model="m", flags=two)):
        assert {n: v for n, v in one.items() if n not in LIVE_FLAGS} == {
            n: v for n, v in two.items() if n not in LIVE_FLAGS
        }


def test_an_engine_is_started_at_the_most_that_the_space_has() -> None:
    started = SPLIT.start_for(engine(max_num_seqs=64, max_num_batched_tokens=2048, enable_prefix_caching=False))
    assert started.flags == {"max-num-seqs": 512, "max-num-batched-tokens": 16384, "enable-prefix-caching": True}


@pytest.mark.parametrize(
    ("started", "wanted", "reached"),
    [
        (engine(max_num_seqs=512), engine(max_num_seqs=64), True),
        (engine(max_num_seqs=64), engine(max_num_seqs=512), False),
        (engine(max_num_seqs=256), engine(), True),  # the default of 256
        (engine(max_num_seqs=128), engine(), False),
        (engine(), engine(enable_prefix_caching=False), True),
        (engine(enable_prefix_caching=False), engine(), False),
        (engine(), engine(kv_cache_dtype="fp8"), False),
        (engine(), engine(scheduling_policy="priority", long_prefill_token_threshold=64), True),
        # vLLM then chooses max-num-batched-tokens by the model's length, and the threshold by the partial prefills.
        (engine(), engine(enable_chunked_prefill=False), False),
        (engine(max_num_partial_prefills=2), engine(max_num_partial_prefills=2, max_num_seqs=8), False),
        (engine(performance_mode="throughput"), engine(performance_mode="throughput", max_num_seqs=8), False),
    ],
)
def test_what_a_running_engine_can_be_made_to_be(started: EngineConfig, wanted: EngineConfig, reached: bool) -> None:
    assert SPLIT.reaches(started, wanted) is reached


def test_a_setting_that_was_shown_to_differ_is_a_launch_flag() -> None:
    split = SPLIT.without(["max-num-seqs"])
    assert not split.reaches(engine(max_num_seqs=512), engine(max_num_seqs=64))
    assert split.reaches(engine(), engine(max_num_batched_tokens=2048))


def test_an_unknown_default_is_not_guessed() -> None:
    assert LiveSplit().settings(engine()) is None
    assert not LiveSplit().reaches(engine(max_num_seqs=8), engine())
