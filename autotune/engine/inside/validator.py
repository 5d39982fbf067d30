"""Asks the vLLM of this interpreter whether it would accept a command line: no engine, no weights, no GPU memory.

Run by path with vLLM's own interpreter; needs nothing but that vLLM (0.20 or newer, found by feature, not by version).
Says {"ready": SECONDS, "server_flags": BOOL} once vLLM is imported; then standard input takes one JSON object a line,
and standard output answers each with one:

    {"argv": [...], "env": {...}}  -> {"ok": true, "effective": {...}, "took_ms": N}
                                   or {"error": TEXT, "took_ms": N}

`argv`: the words after `python -m vllm.entrypoints.openai.api_server`. `env`: the candidate's own variables, for this
question only. TEXT is what the engine's log would hold: the parser's error, or a traceback. End of input ends the
process, also while vLLM hangs over a question.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from typing import Any

# What an engine would use, where this version keeps it: name -> (part of its configuration, attribute).
EFFECTIVE = {
    "max_model_len": ("model_config", "max_model_len"),
    "dtype": ("model_config", "dtype"),
    "quantization": ("model_config", "quantization"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "enable_chunked_prefill": ("scheduler_config", "enable_chunked_prefill"),
    "async_scheduling": ("scheduler_config", "async_scheduling"),
    "block_size": ("cache_config", "block_size"),
    "kv_cache_dtype": ("cache_config", "cache_dtype"),
    "enable_prefix_caching": ("cache_config", "enable_prefix_caching"),
    "tensor_parallel_size": ("parallel_config", "tensor_parallel_size"),
    "pipeline_parallel_size": ("parallel_config", "pipeline_parallel_size"),
    "attention_backend": ("attention_config", "backend"),
    "cudagraph_mode": ("compilation_config", "cudagraph_mode"),
    "max_cudagraph_capture_size": ("compilation_config", "max_cudagraph_capture_size"),
}


class Refusal(Exception):
    """The parser's own error, which would otherwise end the process."""


def server_parser(make: Any) -> tuple[Any, Any]:
    """(the API server's parser, its check of what was parsed or None); (None, None) where it can't be found."""
    for module in ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"):
        with contextlib.suppress(ImportError, AttributeError):
            found = importlib.import_module(module)
            return found.make_arg_parser(make()), getattr(found, "validate_parsed_serve_args", None)
    return None, None


class Judge:
    """Imports vLLM when it is made (8 s or more); the first question takes a second longer than the others."""

    def __init__(self) -> None:
        for module in ("vllm.utils.argparse_utils", "vllm.utils"):
            with contextlib.suppress(ImportError, AttributeError):
                make = importlib.import_module(module).FlexibleArgumentParser
                break
        else:
            raise RuntimeError("this vLLM has no FlexibleArgumentParser where 0.20 to 0.33 have it")
        self.engine_args = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs
        self.options: dict[str, Any] = {}
        with contextlib.suppress(ImportError, AttributeError):
            # Batch sizes depend on it: the server has its own defaults.
            usage = importlib.import_module("vllm.usage.usage_lib").UsageContext
            self.options["usage_context"] = usage.OPENAI_API_SERVER
        parser, self.check = server_parser(make)
        self.whole = parser is not None
        """Whether the server's own flags are known; else they are skipped, unread."""
        self.parser = parser or self.engine_args.add_cli_args(make())
        self.parser.error = self.refuse

    @staticmethod
    def refuse(message: str) -> None:
        raise Refusal(f"error: {message}")

    def judge(self, argv: list[str]) -> dict[str, Any]:
        given = self.parser.parse_args(argv) if self.whole else self.parser.parse_known_args(argv)[0]
        if self.check is not None:
            self.check(given)
        config = self.engine_args.from_cli_args(given).create_engine_config(**self.options)
        effective = {}
        for name, (part, attribute) in EFFECTIVE.items():
            value = plain(getattr(getattr(config, part, None), attribute, None))
            if value is not None:
                effective[name] = value
        return {"ok": True, "effective": effective}


def plain(value: Any) -> Any:
    """A JSON scalar: an enum's text or name, a dtype without `torch.`; None where there is none."""
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str) else value.name
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    text = str(value)
    return text.removeprefix("torch.") if text.startswith("torch.") else None


def answer_to(judge: Judge, request: dict[str, Any]) -> dict[str, Any]:
    before = dict(os.environ)
    began = time.monotonic()
    sys.argv = ["vllm.entrypoints.openai.api_server", *request["argv"]]
    try:
        os.environ.update(request.get("env") or {})
        answer = judge.judge(list(request["argv"]))
    except Refusal as error:
        answer = {"error": str(error)}
    except SystemExit as error:
        answer = {"error": f"SystemExit: {error.code}"}
    except Exception:
        answer = {"error": traceback.format_exc()}
    finally:
        # vLLM writes variables of its own, and would take them for the next candidate's.
        os.environ.clear()
        os.environ.update(before)
    answer["took_ms"] = round(1000 * (time.monotonic() - began), 2)
    return answer


def read(requests: queue.Queue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)  # whoever asked is gone


def main() -> None:
    began = time.monotonic()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")  # what vLLM prints belongs to the log
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=read, args=(requests,), daemon=True).start()

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    judge = Judge()
    say({"ready": round(time.monotonic() - began, 2), "server_flags": judge.whole})
    while True:
        say(answer_to(judge, json.loads(requests.get())))


if __name__ == "__main__":
    # Started by path, so this folder would be searched first for every `import`.
    sys.path[:] = [
        entry for entry in sys.path if os.path.abspath(entry or ".") != os.path.dirname(os.path.abspath(__file__))
    ]
    main()
