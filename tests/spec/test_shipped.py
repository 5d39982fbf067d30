from pathlib import Path

import pytest

from autotune.errors import UserError
from autotune.spec.shipped import resolve_space, resolve_workload, shipped_spaces, shipped_workloads, starter_files
from autotune.spec.workload_file import load_workload

SPACES = ("32b", "72b", "72b-fp8", "7b", "moe-30b", "tiny-cpu")
WORKLOADS = ("batch-summarise", "chat", "code-completion", "mixed", "rag", "shared-prefix", "tiny-cpu")


def test_the_promised_spaces_and_workloads_are_shipped() -> None:
    assert {one.name for one in shipped_spaces()} == set(SPACES)
    assert {one.name for one in shipped_workloads()} == set(WORKLOADS)


@pytest.mark.parametrize(
    "one", [*shipped_spaces(), *shipped_workloads()], ids=lambda one: f"{one.path.parent.name}-{one.name}"
)
def test_each_says_in_its_first_line_what_it_is_for(one: object) -> None:
    assert len(getattr(one, "summary")) > 30  # noqa: B009 - two sorts of files, one fact


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_shipped_workload_has_the_name_of_its_file_and_enough_requests(name: str) -> None:
    workload = load_workload(resolve_workload(name))
    assert workload.name == name
    assert workload.reference.requests >= 100


@pytest.mark.parametrize("name", SPACES)
def test_init_writes_a_space_that_points_at_its_own_workload(name: str, tmp_path: Path) -> None:
    for relative, text in starter_files(name).items():
        (tmp_path / relative).parent.mkdir(exist_ok=True)
        (tmp_path / relative).write_text(text)
    space = tmp_path / "spaces" / f"{name}.yaml"
    line = next(line for line in space.read_text().splitlines() if line.startswith("workload:"))
    pointed = resolve_workload(line.partition(":")[2].strip(), beside=space.parent)
    assert pointed.resolve().parent == tmp_path / "workloads"


def test_a_file_goes_before_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "7b").write_text("name: mine")
    assert resolve_space("7b") == Path("7b")


def test_a_name_finds_the_shipped_file() -> None:
    assert resolve_space("72b").name == "72b.yaml"


@pytest.mark.parametrize(("given", "remedy"), [("72bb", "did you mean 72b"), ("zzz", "There are 32b")])
def test_an_unknown_name_comes_with_the_list(given: str, remedy: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve_space(given)
    assert remedy in str(caught.value.remedy)


@pytest.mark.parametrize("given", ["spaces/zzz.yaml", "zzz.yaml", "/nowhere/zzz"])
def test_a_path_that_isnt_there_is_named(given: str) -> None:
    with pytest.raises(UserError, match="no such space file"):
        resolve_space(given)
