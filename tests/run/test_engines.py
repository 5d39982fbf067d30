"""How an actor's engines are made, by the search's options. Nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engine.vllm import VllmLauncher
from autotune.run.engines import EngineKit, Engines
from autotune.run.options import SearchOptions

pytestmark = pytest.mark.timeout(20)  # the interpreter is asked for its versions


def opened(logs: Path, **options: object) -> Engines:
    return EngineKit(options=SearchOptions.from_json(options)).open(logs)


def forks(launcher: object) -> bool:
    assert isinstance(launcher, VllmLauncher)
    return launcher.fork_server is not None


@pytest.mark.parametrize(
    ("platform", "fork", "forked", "plain_forked"),
    [
        ("cuda", True, True, False),
        ("cuda", False, False, False),
        ("cpu", True, True, True),
        ("cpu", False, False, False),
    ],
)
def test_engines_are_forked_but_for_a_confirmation_on_gpus(
    platform: str, fork: bool, forked: bool, plain_forked: bool, tmp_path: Path
) -> None:
    engines = opened(tmp_path, platform=platform, fork=fork)
    assert (forks(engines.usual), forks(engines.plain)) == (forked, plain_forked)


def test_compile_caches_lie_in_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    launcher = opened(tmp_path, platform="cpu").usual
    assert isinstance(launcher, VllmLauncher) and launcher.compile_cache is not None
    folder = launcher.compile_cache.folder("cpu")
    assert folder is not None and folder.path.is_relative_to(tmp_path / "vllm-autotune" / "compile")
