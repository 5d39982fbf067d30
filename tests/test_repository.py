"""What the repository says about itself, held against what is in it."""

from __future__ import annotations

import ast
import os
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import autotune

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins(lock: Path) -> list[str]:
    return [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_holds_exact_versions_and_no_place_to_fetch_them_from(lock: Path) -> None:
    for line in pins(lock):
        requirement = Requirement(line)
        assert requirement.url is None, line
        assert [bound.operator for bound in requirement.specifier] == ["=="], line


def test_no_package_is_locked_twice() -> None:
    names = [canonicalize_name(Requirement(line).name) for lock in LOCKS for line in pins(lock)]
    assert sorted(set(names)) == sorted(names)


def test_packages_that_break_the_locked_torch_are_not_locked() -> None:
    names = {canonicalize_name(Requirement(line).name) for lock in LOCKS for line in pins(lock)}
    assert "torch" in names
    assert not names & {"torchvision", "torchaudio", "torchcodec"}


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    yield from re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def test_the_documentation_index_lists_every_page() -> None:
    index = ROOT / "docs/README.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert {page for page in (ROOT / "docs").rglob("*.md") if page != index} <= listed


def test_every_make_target_that_the_pages_name_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in PAGES:
        text = page.read_text()
        named = set(re.findall(r"`make ([a-z-]+)", text)) | set(
            re.findall(r"^make ([a-z-]+)(?: +#.*)?$", text, flags=re.MULTILINE)
        )
        assert named <= targets, page


def test_the_changelog_has_a_section_for_this_version() -> None:
    assert f"## [{autotune.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_licence_is_the_whole_apache_text() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert text.lstrip().startswith("Apache License")
    assert "END OF TERMS AND CONDITIONS" in text
    assert len(text.splitlines()) >= 201


def test_continuous_integration_runs_what_the_readme_tells_people_to_run() -> None:
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & stat.S_IXUSR
    assert re.search(r"^exec make test\b", script.read_text(), flags=re.MULTILINE)


def test_every_package_has_its_row_among_the_layers() -> None:
    rows = set(re.findall(r"^\| \d \| `autotune/(\w+)`", (ROOT / "docs/design.md").read_text(), flags=re.MULTILINE))
    packages = {folder.name for folder in (ROOT / "autotune").iterdir() if (folder / "__init__.py").exists()}
    assert packages <= rows


def imported_modules(folder: Path) -> Iterator[tuple[Path, str]]:
    """File and top-level module of every import that has to work: not those whose ImportError is caught."""
    for file in folder.rglob("*.py"):
        tree = ast.parse(file.read_text())
        guarded = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.Try) and any("ImportError" in ast.unparse(h.type or node) for h in node.handlers)
            for statement in node.body
            for inner in ast.walk(statement)
        }
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names) if id(node) not in guarded:
                    yield from ((file, alias.name.split(".")[0]) for alias in names)
                case ast.ImportFrom(module=str(module), level=0) if id(node) not in guarded:
                    yield file, module.split(".")[0]
                case _:
                    pass


@pytest.mark.timeout(20)
def test_every_third_party_import_is_a_declared_dependency() -> None:
    declared = {canonicalize_name(Requirement(text).name) for text in PROJECT["project"]["dependencies"]}
    distributions = packages_distributions()
    inside_vllm = ROOT / "autotune/engine/inside"
    free = sys.stdlib_module_names | {"autotune"}
    for file, module in imported_modules(ROOT / "autotune"):
        if module in free or file.is_relative_to(inside_vllm):
            continue
        assert declared & {canonicalize_name(name) for name in distributions.get(module, [])}, f"{file}: {module}"


@pytest.mark.timeout(20)
def test_every_declared_dependency_is_imported() -> None:
    distributions = packages_distributions()
    used = {
        canonicalize_name(name)
        for _, module in imported_modules(ROOT / "autotune")
        for name in distributions.get(module, [])
    }
    declared = {canonicalize_name(Requirement(text).name) for text in PROJECT["project"]["dependencies"]}
    assert declared <= used


@pytest.mark.timeout(20)
def test_importing_the_command_line_stays_quick_by_leaving_ray_and_optuna_alone() -> None:
    probe = "import sys, autotune.cli.main; print(*sorted({'ray', 'optuna', 'torch', 'vllm'} & sys.modules.keys()))"
    words = [sys.executable, "-c", probe]
    found = subprocess.run(words, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
