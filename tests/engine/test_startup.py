"""When a start is slow, and when it hangs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from autotune.engine.startup import Startup

LIMITS = {"silent_s": 100.0, "start_timeout_s": 3600.0}


def started(folder: Path, *, silent_for_s: float = 0, idle_for_s: float = 0, age_s: float = 0) -> Startup:
    now = time.monotonic()
    log = folder / "engine.log"
    log.write_text("INFO [pynccl.py:113] vLLM is using nccl==2.28\n")
    startup = Startup(log=log, began_s=now - age_s)
    startup.look(lambda: 0.0)
    startup.last_line_s, startup.last_cpu_s = now - silent_for_s, now - idle_for_s
    return startup


def test_the_stage_follows_the_log_as_it_grows(tmp_path: Path) -> None:
    startup = started(tmp_path)
    with startup.log.open("a") as log:
        log.write("INFO Starting to load mo")
        log.flush()
        startup.look(lambda: 0.0)
        before = startup.stage
        log.write("del m...\nLoading safetensors checkpoint shards:  50% Completed\r")
        log.flush()
        startup.look(lambda: 0.0)
    assert (before, startup.stage) == ("distributed", "weights")


def test_a_silent_idle_start_is_hung_and_says_where(tmp_path: Path) -> None:
    hang = started(tmp_path, silent_for_s=101, idle_for_s=101).hang(**LIMITS)
    assert hang is not None
    assert (hang.cause, hang.stage) == ("hang.startup", "distributed")
    assert "nccl" in hang.evidence


@pytest.mark.parametrize(("silent_for_s", "idle_for_s"), [(399, 1), (1, 3000), (99, 99)])
def test_a_start_that_works_or_writes_is_only_slow(tmp_path: Path, silent_for_s: float, idle_for_s: float) -> None:
    assert started(tmp_path, silent_for_s=silent_for_s, idle_for_s=idle_for_s).hang(**LIMITS) is None


def test_spinning_in_silence_is_excused_for_a_while_only(tmp_path: Path) -> None:
    assert started(tmp_path, silent_for_s=401, idle_for_s=0).hang(**LIMITS) is not None


def test_nothing_may_take_longer_than_the_overall_limit(tmp_path: Path) -> None:
    assert started(tmp_path, age_s=3601).hang(**LIMITS) is not None


def test_cpu_time_used_counts_as_progress(tmp_path: Path) -> None:
    startup = started(tmp_path, idle_for_s=500)
    startup._cpu_looked_s = 0
    startup.look(lambda: 12.0)
    assert time.monotonic() - startup.last_cpu_s < 1


def test_the_log_tells_that_the_engine_core_died(tmp_path: Path) -> None:
    startup = started(tmp_path)
    assert not startup.core_died()
    with startup.log.open("a") as log:
        log.write(
            "(APIServer pid=1) ERROR vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
        )
    assert startup.core_died()
    assert startup.core_died()
