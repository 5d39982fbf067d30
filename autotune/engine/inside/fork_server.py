"""Imports vLLM once and forks an engine per request, so that a start costs seconds, not most of a minute.

Runs in vLLM's interpreter, on a CPU only (a process that has a CUDA context can't be forked). Standard input takes one
JSON object a line, standard output answers each with one:

    {"do": "start", "argv": [...], "env": {...}, "log": PATH}  -> {"pid": N, "start": TICKS} or {"error": TEXT}
    {"do": "exit_code", "pid": N}                              -> {"exit_code": N or null}

and says {"ready": SECONDS, "torch_threads": N, "skipped": [...]} first. End of input ends it, and every engine it has
left: first SIGTERM, after a few seconds SIGKILL to the engine's whole session.

An engine forked here is what `python -m vllm.entrypoints.openai.api_server` would have been: session, standard files,
environment, working folder and argv are its own, and its workers get the OpenMP threads and cores vLLM chose for them.
One thing differs: how its processes wait for each other (`wait_without_yielding`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import re
import runpy
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from multiprocessing import resource_tracker
from typing import Any

ENTRY = "vllm.entrypoints.openai.api_server"

# What server, engine core and worker import between them. A name that some version lacks is skipped.
MODULES = (
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.launchers.api_server.routers",
    "vllm.entrypoints.openai.cli_args",
    "vllm.entrypoints.serve",
    "vllm.entrypoints.serve.dev",
    "vllm.entrypoints.generate.api_router",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.structured_output",
    "vllm.model_executor.models.qwen2",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.tokenizers.hf",
    "vllm.renderers.hf",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen2.tokenization_qwen2",
    "uvicorn",
    "torch.distributed",
    "torch._inductor.compile_fx",
)


def import_all() -> list[str]:
    skipped = []
    importlib.import_module(ENTRY)  # the one that must work
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            skipped.append(f"{name}: {error}"[:200])
    return skipped


def wait_without_yielding() -> None:
    """Chooses vLLM's other way to poll shared memory, `time.sleep(0)`, which it uses on Pythons before 3.11.1.

    Engine core and worker poll each other with sched_yield in a loop. Linux kernels that have commit b3d99f43c72b
    (sched/fair: Fix zero_vruntime tracking) without its fix 1319ea57529e then leave other tasks of that core waiting:
    API server and load client, on few cores, for seconds (`benchmarks.standstill`).
    """
    utils = importlib.import_module("vllm.distributed.utils")
    if hasattr(utils, "USE_SCHED_YIELD"):
        vars(utils)["USE_SCHED_YIELD"] = False


def keep_openmp_choice() -> None:
    """In a worker: the threads and cores that vLLM put into its environment.

    A spawned worker's OpenMP library reads them when it is loaded; here it was loaded long ago
    (vllm/utils/ompmultiprocessing.py sets one place that holds all the worker's cores).
    """
    env = os.environ
    cores = (
        re.fullmatch(r"\{([\d,]+)\}", env.get("OMP_PLACES", ""))
        or re.fullmatch(r"([\d ]+)", env.get("GOMP_CPU_AFFINITY", ""))
        or re.search(r"proclist=\[([\d,]+)\]", env.get("KMP_AFFINITY", ""))
    )
    if cores and env.get("OMP_NUM_THREADS", "").isdigit():
        import torch

        os.sched_setaffinity(0, {int(core) for core in re.split("[, ]", cores[1]) if core})
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))


def fork_instead_of_spawn() -> None:
    """vLLM asks for "spawn" in several places; here that would import everything again."""
    import multiprocessing

    get_context = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: get_context(  # type: ignore[assignment]
        "fork" if method == "spawn" else method
    )


def become_engine(request: dict[str, Any], torch_threads: int) -> None:
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 1024)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])
    for folder in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
    tempfile.tempdir = None  # found before this engine had a TMPDIR of its own
    sys.argv = [ENTRY, *request["argv"]]
    threads = os.environ.get("OMP_NUM_THREADS", "")
    import torch

    torch.set_num_threads(int(threads) if threads.isdigit() else torch_threads)
    # One tracker for all of the engine's processes, as spawning would have it: each would start its own after a fork,
    # vLLM kills those along with its workers, and the shared memory of every engine would stay behind.
    resource_tracker.ensure_running()
    fork_instead_of_spawn()
    os.register_at_fork(after_in_child=keep_openmp_choice)
    runpy.run_module(ENTRY, run_name="__main__", alter_sys=False)


def exit_code_of(error: SystemExit) -> int:
    """As the interpreter would end for this SystemExit."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)
    return 1


def start(request: dict[str, Any], torch_threads: int) -> dict[str, Any]:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        return {"pid": pid, "start": ticks}
    code = 1
    try:
        become_engine(request, torch_threads)
        code = 0
    except SystemExit as error:
        code = exit_code_of(error)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            import atexit

            atexit._run_exitfuncs()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def reap(exit_codes: dict[int, int], running: set[int]) -> None:
    for pid in list(running):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            exit_codes[pid] = os.waitstatus_to_exitcode(status)
            running.discard(pid)


def session_members(leader: int) -> list[int]:
    members = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                if int(fields[3]) == leader and fields[0] not in (b"Z", b"X"):
                    members.append(int(name))
    return members


def end_engines(running: set[int], grace_s: float = 5.0) -> None:
    """`running` pids are unreaped children, so that each number still means the engine it was given to.

    The engine's guard does the same sooner; this is for an owner that died before it could name the engine to it.
    """
    for pid in running:
        os.kill(pid, signal.SIGTERM)
    began = time.monotonic()
    while (left := [m for pid in running for m in session_members(pid)]) and time.monotonic() < began + 10:
        if time.monotonic() > began + grace_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def main() -> None:
    began = time.monotonic()
    warnings.filterwarnings("ignore")
    answers = os.fdopen(os.dup(1), "w")  # what vLLM prints while it is imported belongs to the log
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    stop: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))

    def answer(reply: dict[str, Any]) -> None:
        answers.write(json.dumps(reply) + "\n")
        answers.flush()

    import torch

    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # an OpenMP pool that existed before a fork hangs the child
    skipped = import_all()
    with contextlib.suppress(ImportError):  # then this vLLM has it somewhere else: it waits as it always did
        wait_without_yielding()
    gc.collect()
    gc.freeze()
    answer({"ready": round(time.monotonic() - began, 2), "torch_threads": torch_threads, "skipped": skipped})

    running: set[int] = set()
    exit_codes: dict[int, int] = {}
    unread = b""
    while not stop:
        reap(exit_codes, running)
        if not select.select([0], [], [], 0.5)[0]:
            continue
        data = os.read(0, 1 << 20)
        if not data:
            break
        unread += data
        *lines, unread = unread.split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request["do"] == "start":
                try:
                    reply = start(request, torch_threads)
                    running.add(reply["pid"])
                except OSError as error:
                    reply = {"error": str(error)}
                answer(reply)
            elif request["do"] == "exit_code":
                reap(exit_codes, running)
                answer({"exit_code": exit_codes.get(request["pid"])})
    end_engines(running)


if __name__ == "__main__":
    main()
