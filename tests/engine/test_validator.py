"""The installed vLLM's own judgement of command lines, without an engine; and a helper that can't be relied on."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.engine.model_files import resolve_model
from autotune.engine.validator import Refused, Unknown, Valid, Validator, Validity, judged
from autotune.spec.config import EngineConfig, FlagValue

MODEL = "builtin:tiny"


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Validator]:
    """One process for the whole module: importing vLLM takes 8 s or more."""
    log = tmp_path_factory.mktemp("validator") / "validator.log"
    with Validator(vllm_python=Path(sys.executable), log=log, env=os.environ) as made:
        yield made


def ask(vllm: Validator, **flags: FlagValue) -> Validity:
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    return vllm.validate(EngineConfig(model=MODEL, flags=given), model=resolve_model(MODEL))


@pytest.mark.engine
@pytest.mark.timeout(300)
class TestOfTheInstalledVllm:
    def test_what_it_accepts_comes_with_the_values_it_would_use(self, vllm: Validator) -> None:
        default, asked = ask(vllm), ask(vllm, max_num_seqs=48, block_size=64)
        assert isinstance(default, Valid) and isinstance(asked, Valid)
        assert (asked.effective["max_num_seqs"], asked.effective["block_size"]) == (48, 64)
        assert default.effective["dtype"] == "bfloat16"
        assert default.effective["max_num_seqs"] != 48  # its own choice, not the last candidate's

    @pytest.mark.parametrize(
        ("flags", "cause", "said"),
        [
            ({"max_num_seqs": 64, "max_num_batched_tokens": 16}, "config.conflict", "max_num_batched_tokens (16)"),
            (
                {"max_num_batched_tokens": 256, "enable_chunked_prefill": False},
                "config.conflict",
                "max_model_len (4096)",
            ),
            ({"tensor_parallel_size": 3}, "config.unsupported", "attention heads (4)"),
            ({"kv_cache_dtype": "nope"}, "config.invalid", "invalid choice: 'nope'"),
            ({"no_such_flag": 1}, "config.invalid", "unrecognized arguments: --no-such-flag"),
            ({"max_model_len": 999999}, "config.invalid", "derived max_model_len"),
            ({"quantization": "awq"}, "config.invalid", "Cannot find the config file for awq"),
            ({"gpu_memory_utilization": 1.5}, "config.invalid", "less than or equal to 1"),
        ],
    )
    def test_what_it_refuses_has_a_class_and_its_own_sentence(
        self, vllm: Validator, flags: dict[str, FlagValue], cause: str, said: str
    ) -> None:
        answer = ask(vllm, **flags)
        assert isinstance(answer, Refused), answer
        assert answer.cause == cause
        assert said in answer.evidence

    def test_a_refusal_does_not_colour_the_next_answer(self, vllm: Validator) -> None:
        before = ask(vllm)
        ask(vllm, tensor_parallel_size=3)
        after = ask(vllm)
        assert isinstance(before, Valid) and isinstance(after, Valid)
        assert after.effective == before.effective

    def test_variables_of_a_candidate_are_gone_with_it(self, vllm: Validator) -> None:
        """One that vLLM can't read as a number fails, for this candidate alone."""
        wrong = EngineConfig(model=MODEL, env={"VLLM_CPU_KVCACHE_SPACE": "many"})
        assert not isinstance(vllm.validate(wrong, model=resolve_model(MODEL)), Valid)
        assert isinstance(ask(vllm), Valid)

    def test_a_config_json_alone_is_enough(self, vllm: Validator, tmp_path: Path) -> None:
        """No weights and no tokenizer: a model can be judged that isn't on this machine."""
        config = Path(resolve_model(MODEL)) / "config.json"
        (tmp_path / "config.json").write_text(config.read_text())
        found = vllm.validate(EngineConfig(model="some/where", flags={"max-num-seqs": 7}), model=str(tmp_path))
        assert isinstance(found, Valid), found
        assert found.effective["max_num_seqs"] == 7

    def test_a_killed_helper_is_started_again_and_blames_nobody(self, vllm: Validator) -> None:
        assert vllm._helper is not None
        os.killpg(vllm._helper.process.pid, signal.SIGKILL)
        assert isinstance(ask(vllm), Unknown)
        assert isinstance(ask(vllm), Valid)


def helper(tmp_path: Path, answers: str) -> Validator:
    """A helper that has no vLLM, in this interpreter: `answers` is run for each question."""
    script = tmp_path / "helper.py"
    head = 'import json, os, sys, time\nprint(json.dumps({"ready": 0.1}), flush=True)\nfor line in sys.stdin:\n'
    script.write_text(head + textwrap.indent(textwrap.dedent(answers), "    "))
    log = tmp_path / "helper.log"
    return Validator(vllm_python=Path(sys.executable), log=log, env=os.environ, script=script, answer_timeout_s=0.2)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ("time.sleep(600)", "no answer within"),
        ("os._exit(7)", "exit code 7"),
        ("print('no', flush=True)", "something else than JSON"),
    ],
    ids=["hangs", "dies", "babbles"],
)
def test_a_helper_that_fails_is_never_evidence_and_given_up_after_two(tmp_path: Path, answers: str, said: str) -> None:
    with helper(tmp_path, answers) as validator:
        config = EngineConfig(model="m")
        found = [validator.validate(config) for _ in range(3)]
        assert [isinstance(one, Unknown) and said in one.reason for one in found] == [True, True, True]
        assert validator.broken is not None
        assert validator._helper is None


def test_an_interpreter_that_is_not_there_is_not_evidence(tmp_path: Path) -> None:
    with Validator(vllm_python=tmp_path / "python", log=tmp_path / "log", env={}) as validator:
        assert isinstance(validator.validate(EngineConfig(model="m")), Unknown)


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):\nRuntimeError: something odd",
        "ModuleNotFoundError: No module named 'triton'",
        "RuntimeError: Failed to infer device type",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "SystemExit: 1",
        "",
    ],
)
def test_errors_that_are_not_about_the_configuration_are_not_evidence(text: str) -> None:
    assert isinstance(judged({"error": text}), Unknown)


def test_the_process_ends_with_its_context(tmp_path: Path) -> None:
    with helper(tmp_path, 'print(json.dumps({"ok": True, "effective": {}, "took_ms": 1}), flush=True)') as validator:
        assert isinstance(validator.validate(EngineConfig(model="m")), Valid)
        assert validator._helper is not None
        process = validator._helper.process
        assert process.poll() is None
    assert process.poll() == 0
