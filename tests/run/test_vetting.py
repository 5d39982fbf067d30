from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.engine.catalogue import read_catalogue
from autotune.engine.validator import Refused, Unknown, Valid, Validity
from autotune.run.vetting import Vetting, vetting
from autotune.spec.config import EngineConfig

GOOD, BAD, LOST = (EngineConfig(model="m", flags={"max-num-seqs": value}) for value in (8, 0, 16))


def asked(log: list[EngineConfig], config: EngineConfig) -> Validity:
    log.append(config)
    if config == BAD:
        return Refused(cause="config.invalid", evidence="max_num_seqs must be positive", took_ms=3.0)
    return Unknown(reason="the helper is lost") if config == LOST else Valid(effective={}, took_ms=3.0)


def wait_for(ready: Callable[[], bool]) -> None:
    while not ready():
        time.sleep(0.05)


def test_only_what_vllm_refuses_is_refused_and_it_is_asked_once() -> None:
    log: list[EngineConfig] = []
    vetted = Vetting(ask=lambda config: asked(log, config))
    assert [vetted.refuses(config) for config in (GOOD, BAD, LOST, BAD, GOOD)] == [False, True, False, True, False]
    assert log == [GOOD, BAD, LOST]
    assert vetted.says() == (
        "vLLM itself refused 1 candidate before launch (config.invalid: max_num_seqs must be positive)"
    )


def test_where_nothing_was_refused_there_is_nothing_to_say() -> None:
    vetted = Vetting(ask=lambda config: asked([], config))
    vetted.refuses(GOOD)
    assert vetted.says() == ""


def test_while_vllm_is_being_imported_nothing_is_asked_and_nothing_refused() -> None:
    log: list[EngineConfig] = []
    there = False
    vetted = Vetting(ask=lambda config: asked(log, config), ready=lambda: there)
    assert not vetted.refuses(BAD) and log == []
    there = True
    assert vetted.refuses(BAD)


def test_a_question_that_raises_is_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    def fails(config: EngineConfig) -> Validity:
        raise RuntimeError(f"no answer about {config.model}")

    vetted = Vetting(ask=fails)
    assert [vetted.refuses(config) for config in (GOOD, BAD)] == [False, False]
    assert sum("without asking vLLM" in record.message for record in caplog.records) == 1


@pytest.mark.timeout(20)
def test_a_search_that_ends_before_vllm_is_imported_does_not_wait_for_it(tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    with vetting(slow, log_file=tmp_path / "v.log", env={}, known_flags=frozenset()) as vetted:
        assert not vetted.refuses(BAD)


def test_a_vllm_that_cant_be_asked_refuses_nothing_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = tmp_path / "python"
    with vetting(nobody, log_file=tmp_path / "v.log", env={}, known_flags=frozenset()) as vetted:
        wait_for(vetted.ready)
        local = [EngineConfig(model=str(tmp_path), flags=config.flags) for config in (GOOD, BAD)]
        assert [vetted.refuses(config) for config in local] == [False, False]
    assert sum("without asking vLLM" in record.message for record in caplog.records) == 1


@pytest.mark.engine
@pytest.mark.timeout(200)
def test_the_installed_vllm_refuses_what_it_would_not_start(tmp_path: Path) -> None:
    catalogue = read_catalogue(None)
    known = frozenset(catalogue.flags) | catalogue.server_flags
    with vetting(Path(sys.executable), log_file=tmp_path / "v.log", env=dict(os.environ), known_flags=known) as vetted:
        wait_for(vetted.ready)
        fits = {"max-num-seqs": 64, "max-num-batched-tokens": 512, "max-model-len": 256, "enforce-eager": True}
        assert not vetted.refuses(EngineConfig(model="builtin:tiny", flags=fits))
        too_few = {**fits, "max-num-batched-tokens": 32}
        assert vetted.refuses(EngineConfig(model="builtin:tiny", flags=too_few))
    assert "vLLM itself refused 1 candidate" in vetted.says()
