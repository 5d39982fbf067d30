"""docs/cli.md names every command, every option worth knowing, and every key of every JSON answer."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Vtune
from synthetic_run import TTFT_SLO, measured, record, write_run

from autotune.cli.main import app
from autotune.spec.measurement import METRICS
from autotune.spec.verdict import Infeasible

LOGS = Path(__file__).parents[1] / "fixtures" / "logs" / "reports"
DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
# Keys below these are names that a user or vLLM gave, or names of metrics.
OPEN = {
    "fixed",
    "flags",
    "metrics",
    "versions",
    "verdicts",
    "by_use",
    "by_verdict",
    "env",
    "incumbent",
    "environment",
    "facts",
}


def section(command: str) -> str:
    """The text under the heading that names the command."""
    parts = re.split(r"^### ", DOCS, flags=re.MULTILINE)[1:]
    return next(part for part in parts if f"`{command}`" in part.splitlines()[0])


def keys(value: object, under: str = "") -> Iterator[str]:
    match value:
        case dict():
            for key, inner in value.items():
                if under not in OPEN:
                    yield key
                yield from keys(inner, key)
        case list():
            for item in value:
                yield from keys(item, "" if isinstance(item, dict) and "name" in item else under)


@pytest.fixture
def run(tmp_path: Path) -> str:
    records = [
        measured(0, 1000.0, 50.0, role="default"),
        measured(1, 1500.0, 80.0, {"max-num-seqs": 256}),
        record(2, Infeasible(cause="oom", evidence="e"), {"a": 1}),
    ]
    return str(write_run(tmp_path / "runs" / "one", records, slos=(TTFT_SLO,)))


@pytest.mark.parametrize(
    "words",
    [
        ["init", "tiny-cpu"],
        ["spaces"],
        ["workloads"],
        ["workload", "show", "tiny-cpu"],
        ["flags", "max-num-seqs"],
        ["check", "--space", "tiny-cpu"],
        ["check", "--space", "7b", "--model-config", "model", "--gpu", "80"],
        ["status"],
        ["report"],
        ["report", "-o", "report.md"],
        ["best"],
        ["read-log", str(LOGS / "cfg-02-sel.log")],
        ["read-log", "start.log"],
    ],
)
def test_every_key_of_an_answer_is_documented(vtune: Vtune, run: str, words: list[str]) -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(MODEL))
    Path("start.log").write_bytes(gzip.decompress((LOGS.parent / "h200_vllm0.24_base.log.gz").read_bytes()))
    result = vtune(*words, "--json")
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    assert answer["schema_version"] == 1
    known = set(re.findall(r"`(\w+)`", section(words[0]) + section("check") + section("status")))
    assert sorted(set(keys(answer)) - known - {"schema_version"} - set(METRICS)) == []


MODEL = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "torch_dtype": "bfloat16",
}


def test_every_command_is_documented() -> None:
    commands = [command.callback.__name__ for command in app.registered_commands if command.callback]
    assert [name for name in commands if f"`vtune {name.replace('_', '-')}" not in DOCS] == []


def test_every_option_of_search_is_documented(vtune: Vtune) -> None:
    options = set(re.findall(r"--[a-z][a-z-]+", vtune("search", "--help").stdout))
    generic = {"--help", "--no-simulate", "--json", "--space"}
    assert sorted(option for option in options - generic if option not in DOCS) == []
