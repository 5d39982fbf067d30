"""Where engines keep what they compiled: a folder of vtune's own for each fingerprint, so that a broken one may go."""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

_VARIABLES = {"VLLM_CACHE_ROOT": "vllm", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_MARK = ".vtune-made-this"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFolder:
    """One fingerprint's folder as an engine found it. `mark` is renewed with the folder; "" = vtune didn't make it."""

    path: Path
    mark: str

    def variables(self) -> dict[str, str]:
        return {name: str(self.path / part) for name, part in _VARIABLES.items()}

    def used_by(self, env: Mapping[str, str]) -> bool:
        """Whether an engine with this environment keeps anything here: the user's own variables win."""
        return any(env.get(name) == path for name, path in self.variables().items())

    def discard(self) -> bool:
        """Moves the folder aside and deletes it. False = not vtune's, or it was renewed since (by another engine's
        start, which may be under way in the new one); raises OSError where the system forbids it."""
        with _locked(self.path.parent):
            if not self.mark or _mark_in(self.path) != self.mark:
                return False
            self.path.rename(self.path.with_name(f".broken-{self.mark}"))
        for broken in self.path.parent.glob(".broken-*"):  # one that a killed process left as well
            shutil.rmtree(broken, ignore_errors=True)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCache:
    """Folders by fingerprint below `root`. `vllm`, `torch`: versions of the interpreter that engines run in."""

    root: Path
    vllm: str
    torch: str

    def folder(self, hardware: str) -> CacheFolder | None:
        """Made if need be, for its owner alone: what lies in it is executed. None where it can't be written."""
        print_of = hashlib.sha256("\n".join((self.vllm, self.torch, hardware)).encode()).hexdigest()[:16]
        path = self.root / print_of
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.exists():
                _make(path)
            if not os.access(path, os.W_OK | os.X_OK):
                return None
        except OSError:
            return None
        return CacheFolder(path=path, mark=_mark_in(path))


def cache_root(env: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CACHE_HOME/vllm-autotune/compile`, by default below ~/.cache (XDG Base Directory Specification: a relative
    path counts as none)."""
    given = env.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path(env.get("HOME") or gettempdir()) / ".cache"
    return base / "vllm-autotune" / "compile"


def plain_caches() -> dict[str, str]:
    """torch's own default (torch/_inductor/runtime/cache_dir_utils.py) spelled out: it lies in the temporary folder,
    which is each engine's own, and everything would be compiled anew. vLLM's and Triton's lie in the home folder."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return {"TORCHINDUCTOR_CACHE_DIR": str(Path(gettempdir()) / f"torchinductor_{user}")}


def _make(path: Path) -> None:
    """With its mark or not at all; whoever else makes it at the same time may win."""
    mark = secrets.token_hex(8)
    new = path.with_name(f".new-{mark}")
    new.mkdir(mode=0o700)
    (new / _MARK).write_text(mark)
    try:
        new.rename(path)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        if not path.exists():
            raise


def _mark_in(path: Path) -> str:
    with suppress(OSError):
        return (path / _MARK).read_text()
    return ""


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    with (root / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
