import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_catalogue import problem, with_lines
from spec_shapes import (
    DEEPSEEK_V2_LITE,
    FOUR_HEADS,
    FP8_IN_BLOCKS,
    QWEN3_30B_A3B,
    QWEN3_30B_A3B_FP8,
    QWEN_7B,
    shape,
)

from autotune.errors import EnvironmentProblem, UserError
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.legality import illegal, legal_problem, legal_space
from autotune.spec.space import Bundles, Choice, Condition, Dimension, IntRange, SearchSpace
from autotune.spec.weight_blocks import expert_notices

TP = "tensor-parallel-size"


def space(*dimensions: Dimension, **fixed: FlagValue) -> SearchSpace:
    flags = {name.replace("_", "-"): value for name, value in fixed.items()}
    return SearchSpace(name="s", model="m", dimensions=dimensions, fixed=flags)


def choice(name: str, *values: FlagValue, when: Condition | None = None) -> Dimension:
    return Dimension(name=name, domain=Choice(values=values), when=when)


@pytest.mark.parametrize(
    ("degree", "legal"), [(1, True), (2, True), (3, False), (4, True), (7, False), (8, False), (28, True)]
)
def test_heads_are_divided_and_kv_heads_divided_or_repeated(degree: int, legal: bool) -> None:
    # 28 heads, 4 KV heads: 7 divides the heads, but 4 KV heads and 7 ranks don't go into each other.
    reason = illegal(EngineConfig(model="m", flags={TP: degree}), shape(QWEN_7B), None)
    assert (reason is None) is legal


def test_mla_has_no_kv_heads_to_divide() -> None:
    config = EngineConfig(model="m", flags={TP: 16})
    assert illegal(config, shape(DEEPSEEK_V2_LITE), None) is None


@pytest.mark.parametrize(("intermediate", "legal"), [(18944, True), (18944 + 128, False)])
def test_layers_quantized_in_blocks_are_cut_between_blocks_only(intermediate: int, legal: bool) -> None:
    config = EngineConfig(model="m", flags={TP: 4})
    blocks = shape(QWEN_7B | FP8_IN_BLOCKS | {"intermediate_size": intermediate})
    reason = illegal(config, blocks, None)
    assert (reason is None) is legal
    assert legal or "fp8 blocks of 128" in str(reason)
    assert illegal(EngineConfig(model="other", flags={TP: 4}), blocks, None) is None


@pytest.mark.parametrize(("version", "warned"), [("0.24.0", True), ("0.32.0", False)])
def test_experts_cut_within_blocks_are_warned_of_where_vllm_may_refuse_them(version: str, warned: bool) -> None:
    # 768 columns of an expert: 384 is three blocks of 128, 192 is one and a half.
    degrees, experts = choice(TP, 1, 2, 4), shape(QWEN3_30B_A3B_FP8)
    said = expert_notices(space(degrees), experts, vllm_version=version)
    assert [f"{TP} 4 cuts" in one for one in said] == [True] * warned
    assert expert_notices(space(degrees, enable_expert_parallel=True), experts, vllm_version=version) == ()
    assert expert_notices(space(degrees), shape(QWEN3_30B_A3B), vllm_version=version) == ()
    assert expert_notices(space(choice(TP, 1, 2)), experts, vllm_version=version) == ()


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ({"pipeline-parallel-size": 29}, "28 layers"),
        ({"max-model-len": 40000}, "32768 positions"),
        ({TP: 4}, "4 GPUs and there are 2"),
        ({TP: 2, "data-parallel-size": 2}, "4 GPUs"),
    ],
)
def test_the_reason_names_numbers(flags: dict[str, FlagValue], part: str) -> None:
    reason = illegal(EngineConfig(model="m", flags=flags), shape(QWEN_7B), 2)
    assert reason is not None
    assert part in reason


def test_without_a_count_of_gpus_none_is_judged() -> None:
    assert illegal(EngineConfig(model="m", flags={TP: 28}), shape(QWEN_7B), None) is None


@pytest.mark.parametrize("values", [(3,), (1, 3), (3, 4, 1)])
def test_three_for_four_heads_is_one_error_with_key_value_and_the_legal_ones(values: tuple[int, ...]) -> None:
    with pytest.raises(UserError) as caught:
        legal_space(space(choice(TP, *values)), shape(FOUR_HEADS, "tiny"), gpus_available=8, file="s.yaml")
    error = caught.value
    assert (error.file, error.key, error.value) == ("s.yaml", f"search.{TP}", 3)
    assert "4 attention heads of tiny" in str(error)
    assert error.remedy == "write values among 1, 2, 4"


def test_a_fixed_illegal_value_is_an_error_too() -> None:
    with pytest.raises(UserError, match=r"fixed\.tensor-parallel-size"):
        legal_space(space(choice("x", 1, 2), tensor_parallel_size=3), shape(FOUR_HEADS), gpus_available=8)


def test_degrees_beyond_the_machine_are_removed_with_the_reason() -> None:
    found, removed = legal_space(space(choice(TP, 1, 2, 4)), shape(FOUR_HEADS), gpus_available=2)
    assert found.dimensions[0].domain == Choice(values=(1, 2))
    assert [(one.name, one.value) for one in removed] == [(TP, 4)]
    assert "there are 2" in removed[0].reason


def test_what_a_range_only_passes_over_is_removed() -> None:
    dimension = Dimension(name=TP, domain=IntRange(low=1, high=8))
    found, removed = legal_space(space(dimension), shape(FOUR_HEADS), gpus_available=None)
    assert found.dimensions[0].domain == Choice(values=(1, 2, 4))
    assert len(removed) == 5


def test_a_dimension_with_one_value_left_is_fixed() -> None:
    found, _ = legal_space(space(choice(TP, 1, 2)), shape(FOUR_HEADS), gpus_available=1)
    assert (found.dimensions, found.fixed[TP]) == ((), 1)


def test_what_depended_on_a_removed_value_goes() -> None:
    inner = choice("enable-expert-parallel", True, False, when=Condition(name=TP, values=(2, 4)))
    found, _ = legal_space(space(choice(TP, 1, 2), inner, choice("x", 1, 2)), shape(FOUR_HEADS), gpus_available=1)
    assert [one.name for one in found.dimensions] == ["x"]


def test_what_depended_on_the_value_that_is_left_always_takes_part() -> None:
    inner = choice("y", True, False, when=Condition(name=TP, values=(1,)))
    found, _ = legal_space(space(choice(TP, 1, 2), inner), shape(FOUR_HEADS), gpus_available=1)
    assert [(one.name, one.when) for one in found.dimensions] == [("y", None)]


@pytest.mark.parametrize("given_space", [space(choice(TP, 2, 4)), space(choice("x", 1, 2), tensor_parallel_size=4)])
def test_too_few_gpus_are_a_matter_of_the_machine(given_space: SearchSpace) -> None:
    with pytest.raises(EnvironmentProblem, match="this machine has 1 GPU"):
        legal_space(given_space, shape(FOUR_HEADS), gpus_available=1)


def test_no_gpu_at_all_is_said_so() -> None:
    with pytest.raises(EnvironmentProblem, match="no GPU"):
        legal_space(space(choice(TP, 1, 2)), shape(FOUR_HEADS), gpus_available=0)


def test_a_bundle_with_another_checkpoint_is_left_alone() -> None:
    bundle = Dimension(name="w", target="bundle", domain=Bundles(options={"a": {}, "b": {"model": "other", TP: 3}}))
    found, removed = legal_space(space(bundle), shape(FOUR_HEADS), gpus_available=8)
    assert (found.dimensions, removed) == ((bundle,), ())


@given(st.integers(1, 64), st.sampled_from([1, 2, 4, 8]), st.integers(1, 64))
def test_a_legal_degree_divides_the_heads(heads: int, kv_heads: int, degree: int) -> None:
    config = FOUR_HEADS | {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 32}
    if illegal(EngineConfig(model="m", flags={TP: degree}), shape(config), None) is None:
        assert heads % degree == 0


def test_a_problem_gets_a_notice_for_everything_that_was_removed() -> None:
    text = with_lines("search: {max-num-seqs: [1, 2], tensor-parallel-size: [1, 2]}", drop=("search",))
    found = legal_problem(problem(text), shape(FOUR_HEADS), gpus_available=1)
    assert found.space.fixed[TP] == 1
    assert any("tensor-parallel-size 2" in notice for notice in found.notices)
