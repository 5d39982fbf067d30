"""What the fork server checks and sets before and after a fork; engines that it forks: test_launcher.py."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "autotune" / "engine" / "inside" / "fork_server.py"
SERVER = runpy.run_path(str(SCRIPT))

# A stand-in for what no CPU has: files of the CUDA driver under the paths that it opens.
TRACE = """
import runpy, sys
server = runpy.run_path(sys.argv[1])
server["cuda_trace"].__globals__["open_files"] = lambda: iter(sys.argv[2:])
print(server["cuda_trace"]())
server["fork_instead_of_spawn"]()
import multiprocessing
print(multiprocessing.get_context("spawn").get_start_method())
"""


def said(program: str, *words: str) -> list[str]:
    command = [sys.executable, "-c", program, str(SCRIPT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("file", ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia15", "/dev/nvidia-caps/nvidia-cap1"])
def test_what_nvml_opens_hinders_no_fork(file: str) -> None:
    assert said(TRACE, "/dev/null", file) == ["None", "fork"]


@pytest.mark.parametrize("file", ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"])
def test_what_cuda_opens_keeps_vllms_spawn(file: str) -> None:
    assert said(TRACE, "/dev/nvidiactl", file) == [f"{file} is open", "spawn"]


def test_numa_binding_keeps_vllms_spawn() -> None:
    assert said(TRACE, "--numa-bind") == ["None", "spawn"]


def test_a_process_with_a_second_thread_is_not_forked() -> None:
    program = """
import runpy, sys, threading
server = runpy.run_path(sys.argv[1])
print(server["why_not_fork"]())
threading.Thread(target=threading.Event().wait, name="other", daemon=True).start()
print(server["why_not_fork"]())
print(server["start"]({}, 1, {}))
"""
    alone, not_alone, answer = said(program)
    assert alone == "None"
    assert "2 Python threads (MainThread, other)" in not_alone
    assert answer.startswith("{'error': ")


def test_caches_filled_before_the_fork_are_empty_after_it() -> None:
    program = """
import functools, runpy, sys, types
class Platform:
    @classmethod
    @functools.cache
    def capability(cls): return 9
    @staticmethod
    @functools.cache
    def count(): return 8
Platform.__module__ = "vllm.platforms.cuda"
module = types.ModuleType("vllm.platforms.cuda")
module.Platform = Platform
module.name = functools.lru_cache(lambda: "H200")
module.name(), Platform.capability(), Platform.count()
cuda = types.ModuleType("torch.cuda")
cuda._cached_device_count = 8
sys.modules["vllm.platforms.cuda"], sys.modules["torch.cuda"] = module, cuda
runpy.run_path(sys.argv[1])["forget_what_was_cached"]()
for function in (module.name, Platform.capability, Platform.count):
    print(function.cache_info().currsize)
print(cuda._cached_device_count)
"""
    assert said(program) == ["0", "0", "0", "None"]


def test_an_engine_has_the_variables_that_importing_vllm_would_have_set() -> None:
    environment_of = SERVER["environment_of"]
    before = {"FORCED": "0", "SAME": "s", "SERVERS": "x"}
    after = {"FORCED": "1", "SAME": "s", "SERVERS": "x", "NEW": "1", "DEFAULT": "1"}
    engine = {"FORCED": "0", "SAME": "own", "DEFAULT": "own", "OWN": "o"}
    assert environment_of(engine, before, after) == {
        "FORCED": "1",
        "SAME": "own",
        "NEW": "1",
        "DEFAULT": "own",
        "OWN": "o",
    }
