"""Imports vLLM once and forks an engine per request, so that a start costs seconds, not most of a minute.

Runs in vLLM's interpreter, for CPU and CUDA builds of it. It never touches CUDA, whose driver doesn't survive a fork,
and verifies that before each one (`why_not_fork`). Standard input takes one JSON object a line, standard output answers
each with one:

    {"do": "start", "argv": [...], "env": {...}, "log": PATH}  -> {"pid": N, "start": TICKS} or {"error": TEXT}
    {"do": "exit_code", "pid": N}                              -> {"exit_code": N or null}

and says {"ready": SECONDS, "torch_threads": N, "skipped": [...]} first, or {"error": TEXT} where it can't serve at all.
End of input ends it, and every engine it has left: first SIGTERM, after a few seconds SIGKILL to the engine's whole
session.

An engine forked here is what `python -m vllm.entrypoints.openai.api_server` would have been: session, standard files,
environment, working folder and argv are its own, and its workers get the OpenMP threads and cores vLLM chose for them.
One thing differs on CPUs: how its processes wait for each other (`wait_without_yielding`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import platform
import re
import runpy
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
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
CPU_MODULES = (
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.attention.backends.cpu_attn",
)
# Several attention backends, since the candidates may name any; the model runner is the old one or the new one.
CUDA_MODULES = (
    "triton",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.attention.selector",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.attention.backends.triton_attn",
    "vllm.v1.attention.backends.flashinfer",
    "vllm.v1.sample.ops.topk_topp_sampler",
    "vllm.compilation.backends",
    "vllm.compilation.cuda_graph",
    "vllm.distributed.device_communicators.cuda_communicator",
    "vllm.distributed.device_communicators.pynccl",
    "vllm.model_executor.layers.quantization.fp8",
    "vllm.model_executor.models.qwen3",
    "torch._inductor.codegen.triton",
)


class CannotServe(Exception):
    """Engines of this vLLM have to be spawned. Its text says why."""


def import_all() -> list[str]:
    """Returns those that this vLLM lacks. Raises CannotServe, and whatever the entry point's import does."""
    skipped = []
    importlib.import_module(ENTRY)  # the one that must work
    from vllm.platforms import current_platform

    if not (current_platform.is_cpu() or current_platform.is_cuda()):
        raise CannotServe("this vLLM runs neither on a CPU nor on CUDA, and forking was never tried on others")
    if current_platform.is_cuda() and "microsoft" in " ".join(platform.uname()).lower():
        raise CannotServe("NVML doesn't survive a fork under WSL")  # vllm/utils/system_utils.py: _maybe_force_spawn
    for name in (*MODULES, *(CPU_MODULES if current_platform.is_cpu() else CUDA_MODULES)):
        try:
            importlib.import_module(name)
        except Exception as error:  # the engine will say so, if it needs this one
            skipped.append(f"{name}: {type(error).__name__}: {error}"[:200])
        if (trace := cuda_trace()) is not None:
            raise CannotServe(f"{trace} once {name} was imported")
    return skipped


def open_files() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists them
            yield os.readlink(f"/proc/self/fd/{number}")


def cuda_trace() -> str | None:
    """What shows that this process has initialised CUDA; None = nothing does.

    torch knows of its own use only. For anybody else's (Triton, FlashInfer, a call to the driver) the open files speak:
    cuInit opens /dev/nvidia-uvm and keeps it open. NVML, by which vLLM asks about GPUs without CUDA, opens
    nvidiactl, nvidia<N> and files in nvidia-caps, so these mean nothing; all other devices of the driver's do.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "torch.cuda is initialised"
    for path in open_files():
        if re.match(r"/dev/nvidia", path) and not re.fullmatch(r"/dev/nvidia(?:ctl|\d+|-caps/.*)", path):
            return f"{path} is open"
    return None


def why_not_fork() -> str | None:
    """What a forked engine would break or hang on; None = nothing.

    Of several threads only the forking one lives on in the child, and locks that others held stay locked. Counted are
    Python's: libraries keep idle ones of their own (48 beside an H200, where forked engines started and served).
    """
    threads = [thread.name for thread in threading.enumerate()]
    if len(threads) > 1:
        return f"there are {len(threads)} Python threads ({', '.join(threads)})"
    return cuda_trace()


def forget_what_was_cached() -> None:
    """Empties the functools caches of vLLM and torch.cuda.

    What was asked before the fork may depend on the environment: a capability or count of the GPUs that
    CUDA_VISIBLE_DEVICES let the server see (vllm/platforms/cuda.py: get_device_capability).
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(("vllm.", "torch.cuda")):
            classes = [v for v in list(vars(module).values()) if isinstance(v, type) and v.__module__ == name]
            for owner in (module, *classes):
                for value in list(vars(owner).values()):
                    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                    if isinstance(function, functools._lru_cache_wrapper):
                        function.cache_clear()
    if (cuda := sys.modules.get("torch.cuda")) is not None and hasattr(cuda, "_cached_device_count"):
        vars(cuda)["_cached_device_count"] = None


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
    """vLLM asks for "spawn" in several places; here that would import everything again.

    It stays "spawn" where vLLM has no other way (vllm/utils/system_utils.py: _maybe_force_spawn): in a process that has
    initialised CUDA, and for NUMA binding, which replaces the interpreter that is spawned.
    """
    import multiprocessing

    get_context = multiprocessing.get_context

    def chosen(method: str | None = None) -> Any:
        if method == "spawn" and "--numa-bind" not in sys.argv and cuda_trace() is None:
            method = "fork"
        return get_context(method)

    multiprocessing.get_context = chosen


def environment_of(request: dict[str, str], before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """The engine's environment as it would be once it had imported vLLM, which sets variables then.

    One that was there `before` the server's import and changed was set whatever it was; a new one may be a default
    only. (Without PYTORCH_NVML_BASED_CUDA_CHECK the API server initialises CUDA, and can't fork its engine core.)
    """
    new = {name: value for name, value in after.items() if name not in before}
    changed = {name: value for name, value in after.items() if before.get(name, value) != value}
    return {**new, **request, **changed}


def become_engine(request: dict[str, Any], torch_threads: int, before: dict[str, str]) -> None:
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
    environment = environment_of(request["env"], before, dict(os.environ))
    os.environ.clear()
    os.environ.update(environment)
    forget_what_was_cached()
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


def start(request: dict[str, Any], torch_threads: int, before: dict[str, str]) -> dict[str, Any]:
    if (reason := why_not_fork()) is not None:
        return {"error": reason}
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        return {"pid": pid, "start": ticks}
    code = 1
    try:
        become_engine(request, torch_threads, before)
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

    before = dict(os.environ)
    os.environ["TORCH_WARM_POOL"] = "0"  # torch/_inductor/async_compile.py starts processes and a thread, on import
    import torch

    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # an OpenMP pool that existed before a fork hangs the child
    try:
        skipped = import_all()
    except CannotServe as error:
        answer({"error": str(error)})
        return
    del os.environ["TORCH_WARM_POOL"]
    if torch.version.cuda is None:  # a GPU's engine is to be what `vllm serve` is, and has cores to itself
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
                    reply = start(request, torch_threads, before)
                    if "pid" in reply:
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
