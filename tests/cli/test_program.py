"""The program as a shell sees it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest


def program(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autotune.cli.main", *words], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [(["--help"], 0), (["--version"], 0), (["serach"], 2), (["search", "--trails", "3"], 2), (["best", "nowhere"], 2)],
)
@pytest.mark.timeout(10)
def test_exit_codes_reach_the_shell_without_a_traceback(tmp_path: Path, words: list[str], code: int) -> None:
    ended = program(*words, cwd=tmp_path)
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    assert (ended.stderr.count("\n"), ended.stdout == "") == ((0, False) if code == 0 else (1, True))


@pytest.mark.timeout(10)
def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = "{'ray', 'optuna', 'pandas', 'pyarrow', 'pydantic'}"
    words = f"import sys, autotune.cli.main; print(*sorted({heavy} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", words], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout == "\n"


@pytest.mark.timeout(10)
def test_help_comes_at_once(tmp_path: Path) -> None:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        program("--help", cwd=tmp_path)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.5
