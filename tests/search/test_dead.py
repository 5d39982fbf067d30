from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from autotune.search.dead import Dead
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.verdict import Bound, Infeasible

DEFAULTS: dict[str, FlagValue] = {"max-num-seqs": 256, "gpu-memory-utilization": 0.9, "enable-chunked-prefill": True}


def config(**flags: FlagValue) -> EngineConfig:
    return EngineConfig(model="m", flags={name.replace("_", "-"): value for name, value in flags.items()})


def failure(cause: str, *bounds: Bound) -> Infeasible:
    return Infeasible(cause=cause, evidence="", bounds=bounds)


def after(*failed: tuple[EngineConfig, Infeasible], ran: tuple[EngineConfig, ...] = ()) -> Dead:
    dead = Dead(DEFAULTS)
    for one in ran:
        dead.ran(one)
    for one, verdict in failed:
        dead.failed(one, verdict)
    return dead


# ---------------------------------------------------------------- values and pairs


def test_a_value_that_is_refused_for_itself_costs_one_trial() -> None:
    dead = after(
        (
            config(kv_cache_dtype="fp8", max_num_seqs=8),
            failure("config.unsupported", Bound(flag="kv-cache-dtype", none_of=("fp8",))),
        )
    )
    assert (
        dead.why(config(kv_cache_dtype="fp8", max_num_seqs=64))
        == "kv-cache-dtype fp8 can't be had (config.unsupported)"
    )
    assert dead.why(config(kv_cache_dtype="auto", max_num_seqs=8)) is None


def test_a_pair_is_refused_as_a_pair() -> None:
    bound = Bound(flag="max-num-batched-tokens", at_least=4096, when="max-model-len is 4096 and chunked prefill is off")
    whole = config(max_model_len=4096, max_num_batched_tokens=1024, enable_chunked_prefill=False)
    dead = after((whole, failure("config.conflict", bound)))
    assert dead.why(config(max_model_len=4096, max_num_batched_tokens=2048, enable_chunked_prefill=False)) is not None
    assert dead.why(config(max_model_len=4096, max_num_batched_tokens=8192, enable_chunked_prefill=False)) is None
    assert dead.why(config(max_model_len=4096, max_num_batched_tokens=1024)) is None
    assert dead.why(config(max_model_len=2048, max_num_batched_tokens=1024, enable_chunked_prefill=False)) is None


def test_numbers_with_a_limit_or_a_divisor_are_refused_beyond_it() -> None:
    dead = after(
        (config(tensor_parallel_size=3), failure("config.unsupported", Bound(flag="tensor-parallel-size", divides=28)))
    )
    assert dead.why(config(tensor_parallel_size=6)) is not None
    assert dead.why(config(tensor_parallel_size=4)) is None


def test_a_condition_that_nobody_can_read_rules_nothing_out() -> None:
    bound = Bound(flag="optimization-level", at_least=1, when="a setting needs torch.compile")
    dead = after((config(optimization_level=0), failure("config.invalid", bound)))
    assert dead.why(config(optimization_level=0, max_num_seqs=8)) is None


def test_without_names_the_one_value_that_never_ran_is_taken() -> None:
    ran = config(attention_backend="A", block_size=16), config(attention_backend="A", block_size=32)
    dead = after((config(attention_backend="B", block_size=32), failure("config.unsupported")), ran=ran)
    assert dead.why(config(attention_backend="B", block_size=16)) is not None
    assert dead.why(config(attention_backend="A", block_size=64)) is None


def test_without_names_the_one_pair_that_never_ran_together_is_taken() -> None:
    ran = config(attention_backend="B", block_size=16), config(attention_backend="A", block_size=32)
    dead = after((config(attention_backend="B", block_size=32), failure("config.conflict")), ran=ran)
    assert dead.why(config(attention_backend="B", block_size=32, max_num_seqs=8)) is not None
    assert dead.why(config(attention_backend="B", block_size=16, max_num_seqs=8)) is None


def test_where_several_values_may_be_to_blame_none_is() -> None:
    dead = after((config(attention_backend="B", block_size=32), failure("config.unsupported")), ran=(config(),))
    assert dead.why(config(attention_backend="B", block_size=16)) is None


# ---------------------------------------------------------------- memory


def test_what_is_at_least_as_hungry_as_what_had_too_little_is_ruled_out() -> None:
    dead = after((config(max_num_seqs=512, gpu_memory_utilization=0.8), failure("capacity.no_kv_blocks")))
    assert dead.why(config(max_num_seqs=1024, gpu_memory_utilization=0.8)) is not None
    assert dead.why(config(max_num_seqs=512, gpu_memory_utilization=0.7)) is not None
    assert dead.why(config(max_num_seqs=512, gpu_memory_utilization=0.85)) is None
    assert dead.why(config(max_num_seqs=256, gpu_memory_utilization=0.8)) is None


def test_an_engine_that_died_while_it_ran_died_of_too_large_a_share() -> None:
    dead = after((config(gpu_memory_utilization=0.96), failure("oom.runtime")))
    assert dead.why(config(gpu_memory_utilization=0.97)) is not None
    assert dead.why(config(gpu_memory_utilization=0.93)) is None


def test_a_flag_whose_hunger_is_not_known_must_be_the_same() -> None:
    dead = after((config(block_size=16, max_num_seqs=512), failure("oom.profiling")))
    assert dead.why(config(block_size=32, max_num_seqs=1024)) is None
    assert dead.why(config(block_size=16, max_num_seqs=1024)) is not None


def test_more_gpus_and_a_smaller_cache_dtype_may_fit() -> None:
    dead = after((config(tensor_parallel_size=2, kv_cache_dtype="auto"), failure("capacity.kv_too_small")))
    assert dead.why(config(tensor_parallel_size=4, kv_cache_dtype="auto")) is None
    assert dead.why(config(tensor_parallel_size=2, kv_cache_dtype="fp8")) is None
    assert dead.why(config(tensor_parallel_size=1, kv_cache_dtype="auto")) is not None


# ---------------------------------------------------------------- what always holds

VALUES = {"max_num_seqs": (64, 256, 512), "gpu_memory_utilization": (0.8, 0.9), "block_size": (16, 32)}
CAUSES = ("capacity.no_kv_blocks", "oom.profiling", "oom.runtime", "config.unsupported", "config.invalid")
configs = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()}).map(
    lambda flags: config(**flags)
)
bounds = st.sampled_from([(), (Bound(flag="block-size", none_of=("32",)),), (Bound(flag="max-num-seqs", at_most=256),)])
named = st.lists(
    st.tuples(configs, st.builds(lambda cause, b: failure(cause, *b), st.sampled_from(CAUSES), bounds)), max_size=5
)


@given(named, st.lists(configs, max_size=5))
def test_what_ran_is_never_ruled_out(failed: list[tuple[EngineConfig, Infeasible]], ran: list[EngineConfig]) -> None:
    dead = after(*failed, ran=tuple(ran))
    assert all(dead.why(one) is None for one in ran)


@given(named, st.lists(configs, max_size=5), configs, st.integers(0, 99))
def test_the_order_of_telling_does_not_matter(
    failed: list[tuple[EngineConfig, Infeasible]], ran: list[EngineConfig], asked: EngineConfig, seed: int
) -> None:
    one = after(*failed, ran=tuple(ran))
    told: list[EngineConfig | tuple[EngineConfig, Infeasible]] = [*failed, *ran]
    random.Random(seed).shuffle(told)
    other = Dead(DEFAULTS)
    for item in told:
        if isinstance(item, EngineConfig):
            other.ran(item)
        else:
            other.failed(*item)
    assert (one.why(asked) is None) == (other.why(asked) is None)


@given(named, configs, st.tuples(configs, st.builds(failure, st.sampled_from(CAUSES))))
def test_another_failure_brings_nothing_back(
    failed: list[tuple[EngineConfig, Infeasible]], asked: EngineConfig, more: tuple[EngineConfig, Infeasible]
) -> None:
    if after(*failed).why(asked) is not None:
        assert after(*failed, more).why(asked) is not None
