"""vtune's own compile caches: one for each fingerprint, and only these are ever deleted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.engine.compile_cache import CacheFolder, CompileCache, cache_root


def cache(
    root: Path, *, vllm: str = "0.32.0", torch: str = "2.13.0", hardware: str = "H200, driver 570"
) -> CacheFolder:
    found = CompileCache(root=root / "compile", vllm=vllm, torch=torch).folder(hardware)
    assert found is not None
    return found


@pytest.mark.parametrize("other", [{"vllm": "0.31.0"}, {"torch": "2.12.0"}, {"hardware": "H200, driver 580"}])
def test_whatever_compiled_code_depends_on_makes_another_folder(other: dict[str, str], tmp_path: Path) -> None:
    assert cache(tmp_path).path != cache(tmp_path, **other).path
    assert cache(tmp_path) == cache(tmp_path)


def test_only_its_owner_can_write_code_into_it(tmp_path: Path) -> None:
    assert cache(tmp_path).path.stat().st_mode & 0o077 == 0


def test_a_discarded_folder_is_gone_with_all_that_is_in_it(tmp_path: Path) -> None:
    folder = cache(tmp_path)
    kernel = Path(folder.variables()["TRITON_CACHE_DIR"]) / "kernel.so"
    kernel.parent.mkdir()
    kernel.touch()
    assert folder.discard()
    assert [path.name for path in folder.path.parent.iterdir()] == [".lock"]


def test_a_folder_renewed_meanwhile_stays(tmp_path: Path) -> None:
    """Two engines fail on one cache; the second to say so must not take the new one from the first's second start."""
    first, second = cache(tmp_path), cache(tmp_path)
    assert first.discard()
    renewed = cache(tmp_path)
    assert not second.discard()
    assert renewed.path.exists()


def test_a_folder_that_vtune_did_not_make_stays(tmp_path: Path) -> None:
    made = cache(tmp_path)
    made.discard()
    made.path.mkdir()
    assert not cache(tmp_path).discard()
    assert made.path.exists()


def test_where_no_folder_can_be_made_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "compile").touch()
    assert CompileCache(root=tmp_path / "compile", vllm="1", torch="2").folder("cpu") is None


def test_an_engine_uses_it_unless_every_variable_is_someone_elses(tmp_path: Path) -> None:
    folder = cache(tmp_path)
    theirs = dict.fromkeys(folder.variables(), "/theirs")
    assert folder.used_by({**theirs, "TRITON_CACHE_DIR": folder.variables()["TRITON_CACHE_DIR"]})
    assert not folder.used_by(theirs)
    assert not folder.used_by({})


def test_it_lies_where_the_user_keeps_caches() -> None:
    assert cache_root({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/vllm-autotune/compile")
    assert cache_root({"XDG_CACHE_HOME": "x", "HOME": "/h"}) == Path("/h/.cache/vllm-autotune/compile")
    assert cache_root({"HOME": "/h"}) == Path("/h/.cache/vllm-autotune/compile")
    assert cache_root(os.environ).is_absolute()
