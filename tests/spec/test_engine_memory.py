import pytest
from spec_shapes import QWEN3_30B_A3B, QWEN_7B, shape

from autotune.spec.config import FlagValue
from autotune.spec.engine_memory import GraphFlags, Overhead, overhead

QWEN = shape(QWEN_7B)


def needed(tokens: int, sequences: int, *, made_up: bool = False, **flags: FlagValue) -> Overhead:
    spelled = {name.replace("_", "-"): value for name, value in flags.items()}
    return overhead(
        QWEN,
        tokens=tokens,
        sequences=sequences,
        tensor=1,
        pipeline=1,
        graphs=GraphFlags.of(spelled),
        made_up=made_up,
    )


@pytest.mark.parametrize(
    ("sequences", "pieces", "full"),
    # "Profiling CUDA graph memory: PIECEWISE=51 (largest=512), FULL=51 (largest=512)": start logs of vLLM 0.24
    [(1024, 51, 51), (64, 19, 11)],
)
def test_graphs_are_counted_as_vllm_counts_them(sequences: int, pieces: int, full: int) -> None:
    assert GraphFlags.of({}).count(sequences) == pieces + full
    assert GraphFlags.of({"compilation-config.cudagraph_mode": "PIECEWISE"}).count(sequences) == pieces


@pytest.mark.parametrize(("tokens", "sequences", "gib"), [(8192, 1024, 0.51), (2048, 64, 0.14)])
def test_graphs_are_estimated_about_as_vllm_estimates_them(tokens: int, sequences: int, gib: float) -> None:
    assert needed(tokens, sequences).graphs_gib == pytest.approx(gib, abs=0.03)


def test_a_larger_limit_than_vllms_own_adds_graphs_beyond_the_grid() -> None:
    flags: dict[str, FlagValue] = {"max-cudagraph-capture-size": 1024, "compilation-config.cudagraph_mode": "PIECEWISE"}
    assert GraphFlags.of(flags).count(64) == 51 + 32


def test_an_eager_engine_has_no_graphs() -> None:
    assert needed(8192, 1024, enforce_eager=True).graphs_gib == 0


def test_the_higher_of_two_peaks_counts() -> None:
    many_sequences, many_tokens = needed(8192, 1024), needed(16384, 64)
    assert many_sequences.peak_gib == many_sequences.sampler_gib > many_sequences.activations_gib
    assert many_tokens.peak_gib == many_tokens.activations_gib > many_tokens.sampler_gib


def test_made_up_weights_leave_a_floor_and_a_checkpoint_does_not() -> None:
    # Start logs of vLLM 0.24 with dummy weights: 0.92 GiB besides weights, graphs and context.
    assert needed(2048, 64, made_up=True).peak_gib == pytest.approx(0.92, abs=0.05)
    assert needed(2048, 64).peak_gib == needed(2048, 64).activations_gib < 0.3


def test_no_more_sequences_are_sampled_than_a_step_has_tokens() -> None:
    assert needed(512, 1024).sampler_gib == needed(512, 512).sampler_gib


def test_a_token_takes_the_experts_that_it_is_routed_to_and_not_all_of_them() -> None:
    experts = shape(QWEN3_30B_A3B)
    assert (experts.expert_intermediate, experts.experts_per_token) == (768, 8)
    found = overhead(experts, tokens=8192, sequences=64, tensor=1, pipeline=1, graphs=GraphFlags.of({}), made_up=False)
    assert found.activations_gib == pytest.approx(8192 * 2 * (2 * 2048 + 8 * (2048 + 768)) / 2**30)
