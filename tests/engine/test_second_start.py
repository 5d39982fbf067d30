"""Which failed starts are made once more, and how: the truth table."""

from __future__ import annotations

import pytest

from autotune.engine.failure_classes import REMEDIES
from autotune.engine.second_start import second_start
from autotune.spec.verdict import EngineFailure

CUDA_WORDS = "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, use spawn"


def again(
    cause: str, *, log: str = "", forked: bool = True, proven: bool = False, own_cache: bool = False
) -> str | None:
    failure = EngineFailure(stage="imports", cause=cause, evidence="")
    return second_start(failure, log=log, forked=forked, proven=proven, own_cache=own_cache)


@pytest.mark.parametrize("cause", sorted(REMEDIES))
def test_the_first_forked_engine_is_spawned_again_where_its_class_may_lie_in_forking(cause: str) -> None:
    same = cause in ("infra.cancelled", "infra.gpu_busy", "infra.port_race")
    vague = cause == "unknown" or cause.split(".")[0] in ("hang", "infra")
    assert again(cause) == ("spawned" if vague and not same else None)


@pytest.mark.parametrize("cause", sorted(REMEDIES))
def test_nothing_is_repeated_once_a_forked_engine_has_served(cause: str) -> None:
    assert again(cause, proven=True) is None


@pytest.mark.parametrize("cause", sorted(set(REMEDIES) - {"infra.cancelled"}))
def test_words_that_only_a_fork_brings_always_count(cause: str) -> None:
    assert again(cause, log=CUDA_WORDS, proven=True) == "spawned"
    assert again(cause, log=CUDA_WORDS, forked=False) is None


@pytest.mark.parametrize("cause", sorted(REMEDIES))
@pytest.mark.parametrize("forked", [True, False])
def test_a_broken_cache_is_left_out_only_if_it_is_vtunes(cause: str, forked: bool) -> None:
    assert (again(cause, forked=forked, own_cache=True) == "without_cache") == (cause == "infra.cache")
    assert again(cause, forked=forked, own_cache=False) != "without_cache"


def test_a_cancelled_start_is_never_repeated() -> None:
    assert again("infra.cancelled", log=CUDA_WORDS, own_cache=True) is None
