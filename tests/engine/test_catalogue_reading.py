"""How the catalogue is fetched and remembered, with small executables in the place of a Python that has vLLM."""

import json
import stat
import venv
from pathlib import Path

import pytest

from autotune.engine.catalogue import cache_folder, read_catalogue
from autotune.errors import EnvironmentProblem, UserError

pytestmark = pytest.mark.timeout(20)  # each starts two or three processes

FLAG = {
    "kind": "int", "group": "SchedulerConfig", "dest": "max_num_seqs", "default": 128, "choices": [], "strict": True,
    "nullable": True, "human": False, "auto": False, "negatable": False, "aliases": [], "help": "", "keys": None,
}  # fmt: skip
IDENTITY = {"distribution": "vllm", "version": "0.32.0", "python": "p", "installed": "1", "gpu": False}
ANSWER = {**IDENTITY, "flags": {"max-num-seqs": FLAG}, "server_flags": ["port"], "platform": "cpu"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def interpreter(folder: Path, *, full: str, identity: str = json.dumps(IDENTITY), code: int = 0) -> Path:
    """An executable that answers like inside/catalogue.py and writes a line to `calls` for every full reading."""
    python = folder / "python"
    python.write_text(
        "#!/bin/sh\n"
        "echo 'INFO 01-01 noise on stdout'\n"
        f"if [ \"$2\" = --identity ]; then printf 'VTUNE-CATALOGUE %s\\n' '{identity}'; exit 0; fi\n"
        f"echo called >> '{folder}/calls'\n"
        f"cat <<'END'\n{full}\nEND\n"
        "echo 'ImportError: libcudart.so.13: cannot open shared object file' >&2\n"
        f"exit {code}\n"
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


def test_the_answer_is_found_among_noise_and_remembered(tmp_path: Path) -> None:
    python = interpreter(tmp_path, full=f"a log line\nVTUNE-CATALOGUE {json.dumps(ANSWER)}\nanother")
    first, second = read_catalogue(python), read_catalogue(python)
    assert first == second
    assert (first.vllm_version, first.platform, first.python) == ("0.32.0", "cpu", str(python))
    assert first.flags["max-num-seqs"].default == 128
    assert calls(tmp_path) == 1


def test_another_version_in_the_same_interpreter_is_read_anew(tmp_path: Path) -> None:
    full = f"VTUNE-CATALOGUE {json.dumps(ANSWER)}"
    read_catalogue(interpreter(tmp_path, full=full))
    read_catalogue(interpreter(tmp_path, full=full, identity=json.dumps({**IDENTITY, "version": "0.33.0"})))
    assert calls(tmp_path) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"flags": {}}', '{"flags": {"a": {}}, "server_flags": []}'])
def test_a_corrupt_cache_is_read_again(tmp_path: Path, text: str) -> None:
    python = interpreter(tmp_path, full=f"VTUNE-CATALOGUE {json.dumps(ANSWER)}")
    good = read_catalogue(python)
    (kept,) = cache_folder().glob("catalogue-*.json")
    kept.write_text(text)
    assert read_catalogue(python) == good
    assert json.loads(kept.read_text())["vllm_version"] == "0.32.0"


def test_a_cache_that_cant_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    python = interpreter(tmp_path, full=f"VTUNE-CATALOGUE {json.dumps(ANSWER)}")
    assert read_catalogue(python).vllm_version == "0.32.0"


def test_a_vllm_that_cant_be_imported_is_an_environment_problem_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"libcudart\.so\.13.*--vllm-python"):
        read_catalogue(interpreter(tmp_path, full="Traceback", code=1))


@pytest.mark.parametrize("full", ["VTUNE-CATALOGUE {", 'VTUNE-CATALOGUE {"version": "1"}', "VTUNE-CATALOGUE []"])
def test_an_answer_in_another_form_is_an_environment_problem(tmp_path: Path, full: str) -> None:
    with pytest.raises(EnvironmentProblem):
        read_catalogue(interpreter(tmp_path, full=full))


def test_an_interpreter_without_vllm_says_how_to_get_it(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    with pytest.raises(EnvironmentProblem, match=r"bare/bin/python: this interpreter has no vLLM.*pip install"):
        read_catalogue(tmp_path / "bare")


def test_a_missing_interpreter_is_the_users_to_fix(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--vllm-python: .*nowhere"):
        read_catalogue(tmp_path / "nowhere")


def test_a_file_that_cant_be_run_is_the_users_to_fix(tmp_path: Path) -> None:
    text = tmp_path / "python"
    text.write_bytes(b"\x00\x01 not a program")
    text.chmod(0o755)
    with pytest.raises(UserError, match="can't be run"):
        read_catalogue(text)
