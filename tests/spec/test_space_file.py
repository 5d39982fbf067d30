import contextlib
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_catalogue import SPACE, WORKLOAD, problem, small_catalogue, with_lines

from autotune.errors import UserError
from autotune.spec.objective import Budget, Objective, Slo
from autotune.spec.space import Bundles, Choice, Condition, FloatRange, IntRange
from autotune.spec.space_file import Overrides, load_problem


def searching(*entries: str, fixed: str = "fixed: {max-model-len: from-workload}", rest: tuple[str, ...] = ()) -> str:
    """A space that searches these entries (and max-num-seqs, so that there is always something)."""
    lines = ["search:", "  max-num-seqs: [4, 8]", *(f"  {entry}" for entry in entries), fixed, *rest]
    return with_lines(*lines, drop=("search", "fixed"))


def dimension(text: str, name: str) -> object:
    return next(one.domain for one in problem(text).space.dimensions if one.name == name)


@pytest.mark.parametrize(
    ("entry", "domain"),
    [
        ("block-size: [32, 64]", Choice(values=(32, 64))),
        ("block-size: {choices: [32, 64]}", Choice(values=(32, 64))),
        ("block-size: {min: 1, max: 10, step: 4}", IntRange(low=1, high=9, step=4)),
        ("block-size: {min: 5, max: 100, multiple_of: 32}", IntRange(low=32, high=96, step=32)),
        ("block-size: {min: 4, max: 128, log: true}", IntRange(low=4, high=128, log=True)),
        ("max-num-batched-tokens: [1K, 2048]", Choice(values=(1024, 2048))),
        ("kv-cache-memory-bytes: {min: 1M, max: 64M, log: true}", IntRange(low=2**20, high=2**26, log=True)),
        ("gpu-memory-utilization: {min: 0.8, max: 0.95, step: 0.01}", FloatRange(low=0.8, high=0.95, step=0.01)),
        ("gpu-memory-utilization: {min: 0.8, max: 1}", FloatRange(low=0.8, high=1.0)),
        ("enforce-eager: [true, false]", Choice(values=(True, False))),
        ("enforce-eager: [null, true]", Choice(values=(None, True))),
        ("disable-log-stats: [true, false]", Choice(values=(True, None))),
        ("compilation-config.cudagraph_mode: [FULL, PIECEWISE]", Choice(values=("FULL", "PIECEWISE"))),
        ("compilation-config.pass_config.fuse_norm_quant: [true, false]", Choice(values=(True, False))),
    ],
)
def test_every_form_of_a_domain_is_read(entry: str, domain: object) -> None:
    assert dimension(searching(entry), entry.partition(":")[0]) == domain


def test_one_value_is_a_fixed_flag() -> None:
    space = problem(searching("block-size: 64", "enforce-eager: [true]")).space
    assert (space.fixed["block-size"], space.fixed["enforce-eager"]) == (64, True)
    assert [one.name for one in space.dimensions] == ["max-num-seqs"]


def test_max_model_len_from_the_workload_is_its_longest_request_in_blocks_of_16() -> None:
    assert problem().space.fixed["max-model-len"] == 128


def test_a_json_flag_may_be_fixed_as_a_mapping() -> None:
    text = searching(fixed="fixed: {compilation-config: {mode: 0, pass_config: {fuse_norm_quant: true}}}")
    assert problem(text).space.fixed == {
        "compilation-config.mode": 0,
        "compilation-config.pass_config.fuse_norm_quant": True,
    }


def test_keys_that_vllm_doesnt_declare_keep_the_type_they_were_written_with() -> None:
    text = searching(fixed="fixed: {speculative-config: {method: ngram, num_speculative_tokens: 3}}")
    assert problem(text).space.fixed == {
        "speculative-config.method": "ngram",
        "speculative-config.num_speculative_tokens": 3,
    }


def test_environment_variables_are_fixed_or_searched_as_text() -> None:
    text = with_lines("env:", "  VLLM_A: 1", "  VLLM_B: {choices: [x, y]}", "  VLLM_C: [0, 1]")
    space = problem(text).space
    assert space.fixed_env == {"VLLM_A": "1"}
    assert [(one.name, one.domain, one.target) for one in space.dimensions[-2:]] == [
        ("VLLM_B", Choice(values=("x", "y")), "env"),
        ("VLLM_C", Choice(values=("0", "1")), "env"),
    ]


def test_a_condition_comes_after_what_it_names() -> None:
    text = searching(
        "long-prefill-token-threshold: {choices: [0, 64], when: {enable-chunked-prefill: true}}",
        "enable-chunked-prefill: [true, false]",
    )
    dimensions = problem(text).space.dimensions
    assert [one.name for one in dimensions][1:] == ["enable-chunked-prefill", "long-prefill-token-threshold"]
    assert dimensions[-1].when == Condition(name="enable-chunked-prefill", values=(True,))


def test_one_value_under_a_condition_is_given_only_where_it_holds() -> None:
    text = searching(
        "enforce-eager: [true, false]", "max-cudagraph-capture-size: {choices: [64], when: {enforce-eager: false}}"
    )
    space = problem(text).space
    assert "max-cudagraph-capture-size" not in space.fixed
    assert space.dimensions[-1].domain == Choice(values=(64,))


@pytest.mark.parametrize("fixed", ["fixed: {enforce-eager: false}", "fixed: {}"])
def test_a_condition_that_always_holds_disappears(fixed: str) -> None:
    text = searching("max-cudagraph-capture-size: {choices: [64, 128], when: {enforce-eager: false}}", fixed=fixed)
    assert problem(text).space.dimensions[-1].when is None


def test_bundles_are_named_groups_of_flags() -> None:
    text = with_lines("bundles:", "  how:", "    plain: {}", "    small: {block-size: 64, enforce-eager: true}")
    last = problem(text).space.dimensions[-1]
    assert last.domain == Bundles(options={"plain": {}, "small": {"block-size": 64, "enforce-eager": True}})
    assert (last.target, last.gated) == ("bundle", False)


GATED = [
    "kv-cache-dtype: [auto, fp8]",
    "quantization: [null, fp8]",
    "dtype: [auto, float16]",
    "speculative-config.num_speculative_tokens: [2, 4]",
    "block-size: {choices: [32, 64], quality: gated}",
]


@pytest.mark.parametrize("entry", GATED)
def test_what_may_change_answers_stays_at_its_baseline_with_a_notice(entry: str) -> None:
    name = entry.partition(":")[0]
    found = problem(searching(entry))
    assert found.pinned == (name,)
    assert [one.name for one in found.space.dimensions] == ["max-num-seqs"]
    assert any(name in notice and "--allow-quality-loss" in notice for notice in found.notices)


@pytest.mark.parametrize("entry", GATED)
def test_what_may_change_answers_is_searched_when_that_is_allowed(entry: str) -> None:
    name = entry.partition(":")[0]
    for found in (problem(searching(entry), allow_quality_loss=True), problem(searching(entry), allow=(name,))):
        assert found.pinned == ()
        assert (found.space.dimensions[-1].name, found.space.dimensions[-1].gated) == (name, True)


def test_a_bundle_that_swaps_the_model_is_gated() -> None:
    text = with_lines("bundles: {weights: {plain: {}, awq: {model: m-awq, quantization: awq}}}")
    assert problem(text).pinned == ("weights",)
    assert problem(text, allow_quality_loss=True).space.decode({"weights": "awq"}).model == "m-awq"


def test_what_depends_on_a_pinned_flag_goes_with_it() -> None:
    found = problem(
        searching("kv-cache-dtype: [auto, fp8]", "block-size: {choices: [32, 64], when: {kv-cache-dtype: fp8}}")
    )
    assert [one.name for one in found.space.dimensions] == ["max-num-seqs"]
    assert any("block-size" in notice for notice in found.notices)


def test_what_depends_on_the_baseline_of_a_pinned_flag_stays() -> None:
    found = problem(
        searching("kv-cache-dtype: [auto, fp8]", "block-size: {choices: [32, 64], when: {kv-cache-dtype: auto}}")
    )
    assert [one.name for one in found.space.dimensions] == ["max-num-seqs", "block-size"]


def test_objectives_slos_and_budget_are_read_with_their_units() -> None:
    text = with_lines(
        "slos: {ttft_p99: 2 s, tpot_p99: 50 ms, failed_share: 1 %, output_tok_per_s_per_gpu: '>= 500 tok/s'}",
        "budget: {gpu_time: 1 h 30 min, trials: 40}",
        drop=("slos",),
    )
    found = problem(text)
    assert found.objectives == (
        Objective(metric="output_tok_per_s_per_gpu", direction="maximize"),
        Objective(metric="ttft_p99_ms", direction="minimize"),
    )
    assert found.slos == (
        Slo(metric="ttft_p99_ms", limit=2000.0),
        Slo(metric="tpot_p99_ms", limit=50.0),
        Slo(metric="failed_share", limit=0.01),
        Slo(metric="output_tok_per_s_per_gpu", limit=500.0, at_least=True),
    )
    assert found.budget == Budget(gpu_s=5400.0, wall_s=None, trials=40)


@pytest.mark.parametrize("lines", [(), ("budget: {trials: 5}",)])
def test_without_a_time_limit_the_search_gets_an_hour(lines: tuple[str, ...]) -> None:
    assert problem(with_lines(*lines)).budget.wall_s == 3600.0


def test_the_command_line_goes_before_the_file() -> None:
    found = problem(
        with_lines("budget: {gpu_time: 2 h, trials: 40}", "seed: 3"),
        overrides=Overrides(model="other", seed=7, wall_s=60.0, trials=5),
    )
    assert (found.space.model, found.seed) == ("other", 7)
    assert found.budget == Budget(gpu_s=None, wall_s=60.0, trials=5)


def test_the_incumbent_is_the_fixed_flags_with_its_own_on_top() -> None:
    found = problem(with_lines("incumbent: {max-num-seqs: 32, max-model-len: null}"))
    assert found.incumbent is not None
    assert (found.incumbent.model, found.incumbent.flags) == ("m", {"max-num-seqs": 32})


def test_the_same_texts_always_give_the_same_problem() -> None:
    assert problem() == problem()


def test_a_length_far_beyond_the_workload_is_worth_a_notice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="autotune.spec"):
        found = problem(searching(fixed="fixed: {max-model-len: 32768}"))
    assert any("32768" in notice and "needs 120 tokens" in notice for notice in found.notices)
    assert "32768" in caplog.text


def test_a_space_without_a_length_says_what_the_workload_needs() -> None:
    assert any("120 tokens" in notice for notice in problem(searching(fixed="fixed: {}")).notices)


MISTAKES = [
    (searching("max-num-seq: [1, 2]"), "search.max-num-seq", None, "did you mean max-num-seqs"),
    (
        searching("max_num_batched_tokens: [1, 2]"),
        "search.max_num_batched_tokens",
        None,
        "write max-num-batched-tokens",
    ),
    (searching("swap-space: [1, 2]"), "search.swap-space", None, "remove it"),
    (searching("port: [1, 2]"), "search.port", None, "loopback"),
    (searching("kv-cache-dtype: [auto, fp9]"), "search.kv-cache-dtype.1", "fp9", "did you mean 'fp8'"),
    (searching("enforce-eager: [on, off]"), "search.enforce-eager.0", "on", "true or false"),
    (searching("block-size: []"), "search.block-size", None, "two values"),
    (searching("block-size: [32, 32]"), "search.block-size.1", 32, "keep one"),
    (searching("block-size: [32, '64']"), "search.block-size.1", "64", "without quotes"),
    (searching("block-size: {min: 9, max: 3}"), "search.block-size", None, "swap"),
    (searching("block-size: {min: 9}"), "search.block-size", None, "min: 1, max: 8"),
    (searching("block-size: {min: 1, max: 3, choices: [1]}"), "search.block-size", None, "remove one"),
    (searching("block-size: {min: 1, max: 9, step: 0}"), "search.block-size.step", 0, "step: 1"),
    (searching("block-size: {min: 1, max: 9, step: 2, multiple_of: 2}"), "search.block-size", None, "keep one"),
    (searching("block-size: {min: 1, max: 9, step: 2, log: true}"), "search.block-size.step", 2, "list the values"),
    (searching("block-size: {min: 33, max: 60, multiple_of: 64}"), "search.block-size.multiple_of", 64, "widen"),
    (searching("block-size: {min: 1, max: 9, setp: 2}"), "search.block-size.setp", 2, "did you mean step"),
    (
        searching("long-prefill-token-threshold: {min: 0, max: 9, log: true}"),
        "search.long-prefill-token-threshold.min",
        0,
        "log",
    ),
    (searching("enforce-eager: {min: 0, max: 1}"), "search.enforce-eager", None, "list its values"),
    (searching("block-size: {choices: [1, 2], quality: high}"), "search.block-size.quality", "high", "gated"),
    (searching("cudagraph-capture-sizes: [1, 2]"), "search.cudagraph-capture-sizes.0", 1, "max-cudagraph"),
    (searching("max-model-len: [64, 256]", fixed="fixed: {}"), "search.max-model-len", 64, "from-workload"),
    (searching(fixed="fixed: {max-model-len: 64}"), "fixed.max-model-len", 64, "from-workload"),
    (searching(fixed="fixed: {max-num-seqs: 4}"), "search.max-num-seqs", "4", "remove it"),
    (searching(fixed="fixed: {block-size: [1, 2]}"), "fixed.block-size", None, "under `search`"),
    (searching(fixed="fixed: {gpu-memory-utilization: 1.5}"), "fixed.gpu-memory-utilization", 1.5, "1 or less"),
    (
        searching("compilation-config.mode: [0, 3]", fixed="fixed: {compilation-config: '{\"mode\": 3}'}"),
        "search.compilation-config.mode",
        None,
        "keys only",
    ),
    (searching("block-size: {choices: [1, 2], when: {zzz: 1}}"), "search.block-size.when.zzz", "zzz", "name a flag"),
    (
        searching("block-size: {choices: [1, 2], when: {enforce-eagre: true}}"),
        "search.block-size.when.enforce-eagre",
        "enforce-eagre",
        "did you mean enforce-eager",
    ),
    (
        searching("block-size: {choices: [1, 2], when: {block-size: 1}}"),
        "search.block-size.when.block-size",
        None,
        "another",
    ),
    (searching("block-size: {choices: [1, 2], when: {}}"), "search.block-size.when", "none", "keep one"),
    (
        searching("block-size: {choices: [1, 2], when: {enforce-eager: true}}"),
        "search.block-size.when.enforce-eager",
        "True",
        "search enforce-eager",
    ),
    (
        searching("block-size: {choices: [1, 2], when: {max-num-seqs: 5}}"),
        "search.block-size.when.max-num-seqs",
        5,
        "one of 4, 8",
    ),
    (
        searching(
            "block-size: {choices: [1, 2], when: {tensor-parallel-size: 1}}",
            "tensor-parallel-size: {choices: [1, 2], when: {block-size: 1}}",
        ),
        "search",
        None,
        "remove one",
    ),
    (searching(rest=("serach: {}",)), "serach", None, "did you mean search"),
    (searching(rest=("rules: [max-num-seqs > 100]",)), "rules.0", "max-num-seqs > 100", "widen max-num-seqs"),
    (searching(rest=("rules: [max-num-seqs < 5, max-num-seqs > 5]",)), "rules", None, "relax"),
    (searching(rest=("rules: [max-num-seq < 5]",)), "rules.0", "max-num-seq < 5", "did you mean max-num-seqs"),
    (searching(rest=("rules: [__import__('os')]",)), "rules.0", "__import__('os')", "write for example"),
    (searching(rest=("rules: [1 < 2]",)), "rules.0", "1 < 2", "name the flags"),
    (searching(rest=("rules: [max-num-seqs < kv-cache-dtype]",)), "rules.0", None, "change the rule"),
    (with_lines("objectives: {ttft_p99: minimize}", drop=("objectives",)), "objectives", "ttft_p99", "add one"),
    (with_lines("objectives: {}", drop=("objectives",)), "objectives", "none", "add one"),
    (
        with_lines("objectives: {ttfp_p99: minimize, x: maximize}", drop=("objectives",)),
        "objectives.ttfp_p99",
        "ttfp_p99",
        "did you mean ttft_p99",
    ),
    (
        with_lines("objectives: {ttft_p99_ms: minimize}", drop=("objectives",)),
        "objectives.ttft_p99_ms",
        None,
        "write ttft_p99",
    ),
    (
        with_lines("objectives: {ttft_p99: maximize}", drop=("objectives",)),
        "objectives.ttft_p99",
        "maximize",
        "write minimize",
    ),
    (with_lines("objectives: {ttft_p99: max}", drop=("objectives",)), "objectives.ttft_p99", "max", "write minimize"),
    (with_lines("slos: {ttft_p99: 2}", drop=("slos",)), "slos.ttft_p99", 2, "ttft_p99: 2 s"),
    (with_lines("slos: {ttft_p99: 2 tok/s}", drop=("slos",)), "slos.ttft_p99", "2 tok/s", "ttft_p99: 2 s"),
    (with_lines("slos: {ttft_p99: '>= 2 s'}", drop=("slos",)), "slos.ttft_p99", ">= 2 s", "write 2 s"),
    (
        with_lines("slos: {output_tok_per_s: 500 tok/s}", drop=("slos",)),
        "slos.output_tok_per_s",
        "500 tok/s",
        ">= 500 tok/s",
    ),
    (with_lines("slos: {failed_share: 0}", drop=("slos",)), "slos.failed_share", 0, "leave it out"),
    (with_lines("slos: {ttft: 2 s}", drop=("slos",)), "slos.ttft", "ttft", "did you mean ttft_p"),
    (with_lines("budget: {gpu_time: 3600}"), "budget.gpu_time", 3600, "1 h"),
    (with_lines("budget: {trials: 0}"), "budget.trials", 0, "40"),
    (with_lines("budget: {time: 1 h}"), "budget.time", "1 h", "Known keys"),
    (with_lines("incumbent: {max-num-seqz: 4}"), "incumbent.max-num-seqz", None, "did you mean max-num-seqs"),
    (with_lines("seed: -1"), "seed", -1, "correct"),
    (with_lines("vllm: '>=0.40'"), "vllm", ">=0.40", "--vllm-python"),
    (with_lines("vllm: newest"), "vllm", "newest", ">=0.20"),
    (with_lines("env: {HF_TOKEN: x}"), "env.HF_TOKEN", None, "shell"),
    (with_lines("env: {CUDA_VISIBLE_DEVICES: '0'}"), "env.CUDA_VISIBLE_DEVICES", None, "remove"),
    (with_lines("env: {VLLM_X: true}"), "env.VLLM_X", True, "as text"),
    (with_lines("bundles: {a: {x: {}}}"), "bundles.a", None, "plain"),
    (with_lines("bundles: {a: {x: {}, y: {max-num-seqs: 2}}}"), "bundles.a.y.max-num-seqs", "2", "`search`"),
    (with_lines("bundles: {block-size: {x: {}, y: {}}}"), "bundles.block-size", None, "rename"),
    (with_lines("bundles: {a: {x: {}, y: 3}}"), "bundles.a.y", "3", "{}"),
    (with_lines(drop=("model",)), "model", None, "add `model:`"),
    (with_lines("search: {block-size: 32}", drop=("search",)), "search", None, "two values"),
    (
        with_lines("search: {quantization: [null, fp8]}", drop=("search",)),
        "search",
        "quantization",
        "--allow-quality-loss",
    ),
    (with_lines("search: [max-num-seqs]", drop=("search",)), "search", None, "a mapping"),
]


@pytest.mark.parametrize(("text", "key", "value", "remedy"), MISTAKES)
def test_a_mistake_is_one_error_naming_file_key_value_and_remedy(
    text: str, key: str, value: object, remedy: str
) -> None:
    with pytest.raises(UserError) as caught:
        problem(text)
    error = caught.value
    assert error.exit_code == 2
    assert str(error.file).startswith("s.yaml")
    assert error.key == key
    assert remedy in str(error.remedy)
    if value is not None:
        assert error.value == value


def test_an_error_names_the_line() -> None:
    with pytest.raises(UserError, match=r"^s.yaml:7: search.max-num-seqz: "):
        problem(SPACE.replace("  max-num-seqs:", "  max-num-seqz:"))


def test_an_allowed_name_that_isnt_searched_is_an_error() -> None:
    with pytest.raises(UserError, match="allowed by name"):
        problem(allow=("kv-cache-dtype",))


def test_a_workload_that_isnt_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SPACE.replace("w.yaml", "chatt"))
    with pytest.raises(UserError, match=r"s\.yaml:4: workload: .*Did you mean chat"):
        load_problem(tmp_path / "s.yaml", catalogue=small_catalogue())


def test_a_workload_is_looked_up_beside_the_space(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SPACE)
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    found = load_problem(tmp_path / "s.yaml", catalogue=small_catalogue())
    assert (found.workload.name, found.workload_file) == ("w", tmp_path / "w.yaml")


def test_another_workload_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SPACE)
    assert load_problem(tmp_path / "s.yaml", catalogue=small_catalogue(), workload="chat").workload.name == "chat"


def test_a_space_without_a_workload_asks_for_one(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SPACE.replace("workload: w.yaml\n", ""))
    with pytest.raises(UserError, match="names no workload"):
        load_problem(tmp_path / "s.yaml", catalogue=small_catalogue())


@given(
    st.text(max_size=200)
    | st.sampled_from(SPACE.splitlines()).map(lambda line: SPACE.replace(line, line[: len(line) // 2]))
)
def test_no_text_whatever_ends_in_anything_but_a_problem_or_a_user_error(text: str) -> None:
    with contextlib.suppress(UserError):
        problem(text)


def test_a_rate_within_the_slos_needs_a_goodput_search() -> None:
    text = with_lines("objectives: {max_rate_within_slo_rps: maximize, ttft_p99: minimize}", drop=("objectives",))
    with pytest.raises(UserError, match="max_rate_within_slo_rps") as refused:
        problem(text)
    assert "goodput_search" in str(refused.value)


def test_a_goodput_search_needs_a_limit_that_a_high_rate_breaks() -> None:
    searching_workload = f"{WORKLOAD}\ngoodput_search: {{requests: 50}}\n"
    with pytest.raises(UserError, match="slos") as refused:
        problem(with_lines('slos: {output_tok_per_s: ">= 10 tok/s"}', drop=("slos",)), workload=searching_workload)
    assert "ttft_p99" in str(refused.value)
    assert problem(with_lines("slos: {ttft_p99: 1 s}", drop=("slos",)), workload=searching_workload)
