"""What flags an installed vLLM has, and whether a value fits one. Read by `engine.catalogue`, judged here."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

from autotune.spec.config import FlagValue
from autotune.spec.flag_changes import REPLACED

Kind = Literal["bool", "int", "float", "str", "json", "list"]

ANSWER_CHANGING = frozenset(
    [
        "quantization",
        "quantization-config",
        "dtype",
        "kv-cache-dtype",
        "kv-cache-dtype-skip-layers",
        "calculate-kv-scales",
        "mamba-cache-dtype",
        "mamba-ssm-cache-dtype",
        "speculative-config",
        "spec-method",
        "spec-model",
        "spec-tokens",
        "hf-overrides",
        "model",
        "revision",
        "tokenizer",
        "model-class-overrides",
        "logits-processors",
        "override-generation-config",
        "generation-config",
        "enable-mamba-cache-stochastic-rounding",
    ]
)
"""Flags (or whole JSON flags) that may change what the model answers: gated wherever they are searched."""

_SET_BY_VTUNE: Mapping[str, str] = {
    "model": "give it as the space's own key `model`, or inside a bundle",
    **dict.fromkeys(("served-model-name",), "remove it: it doesn't change speed"),
    **dict.fromkeys(
        [
            "nnodes",
            "node-rank",
            "master-addr",
            "master-port",
            "device-ids",
            "data-parallel-address",
            "data-parallel-rpc-port",
            "data-parallel-rank",
            "data-parallel-start-rank",
            "data-parallel-size-local",
        ],
        "remove it: the search decides where an engine runs",
    ),
    **dict.fromkeys(
        [
            "host",
            "port",
            "uds",
            "api-key",
            "ssl-keyfile",
            "ssl-certfile",
            "ssl-ca-certs",
            "root-path",
            "middleware",
            "headless",
            "api-server-count",
            "uvicorn-log-level",
            "config",
        ],
        "remove it: every engine gets a port and a key of its own, on the loopback interface",
    ),
}

_BOUNDS: Mapping[str, tuple[float, float]] = {
    "gpu-memory-utilization": (0.01, 1.0),
    "watermark": (0.0, 1.0),
    **dict.fromkeys(
        [
            "max-num-seqs",
            "max-num-batched-tokens",
            "max-model-len",
            "tensor-parallel-size",
            "pipeline-parallel-size",
            "block-size",
            "data-parallel-size",
            "kv-cache-memory-bytes",
            "stream-interval",
            "num-gpu-blocks-override",
        ],
        (1, float("inf")),
    ),
}
"""Least and greatest legal value, as vllm/config declares them (Field(ge=1), Field(gt=0, le=1)); others: >= 0 or -1."""

_HUMAN = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT])(i?B)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One engine argument, or one key of a JSON argument (`keys` of the flag above it).

    `default` is what vLLM uses when the flag isn't given; None = not known, or decided by the model. `strict`: nothing
    but `choices` is legal. `human`: whole numbers may be written as vLLM reads them ("64M" is binary, "64m" decimal).
    `auto`: "auto" and -1 are legal too. `negatable`: there is a `--no-` form. `keys` is None for a JSON argument whose
    keys vLLM doesn't declare.
    """

    name: str
    kind: Kind
    default: FlagValue = None
    choices: tuple[FlagValue, ...] = ()
    strict: bool = True
    help: str = ""
    group: str = ""
    nullable: bool = False
    human: bool = False
    auto: bool = False
    negatable: bool = True
    aliases: tuple[str, ...] = ()
    keys: Mapping[str, Flag] | None = None

    def parse(self, value: object) -> FlagValue:
        """`value` as the engine gets it: "64M" becomes 67108864, 1 becomes 1.0 for a float.

        None is always legal: the flag isn't given. Raises IllegalValue with the remedy.
        """
        if value is None:
            return None
        match self.kind:
            case "bool":
                if not isinstance(value, bool):
                    raise IllegalValue("needs a boolean", f"write true or false for {self.name}")
                return value if value or self.negatable else None
            case "int":
                return self._whole(value)
            case "float":
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise IllegalValue("needs a number", f"write {self.name} without quotes or unit, such as 0.9")
                if value != value or value in (float("inf"), float("-inf")):
                    raise IllegalValue("needs a finite number", "write a number such as 0.9")
                self._bounded(value)
                return float(value)
            case "str":
                return self._text(value)
            case "json":
                return self._json(value)
            case "list":
                raise IllegalValue("takes a list of values, which a space can't hold", self._list_advice())
            case _:
                assert_never(self.kind)

    def _whole(self, value: object) -> int | str:
        if self.auto and value in ("auto", -1) and not isinstance(value, bool):
            assert isinstance(value, str | int)
            return value
        found: int | None = None
        if isinstance(value, int) and not isinstance(value, bool):
            found = value
        elif isinstance(value, float) and value.is_integer():
            raise IllegalValue("needs a whole number", f"write {int(value)}")
        elif isinstance(value, str) and self.human and (match := _HUMAN.fullmatch(value.strip())):
            number, letter, _ = match.groups()
            base = 1024 if letter.isupper() else 1000
            found = int(float(number) * base ** ("kmgt".index(letter.lower()) + 1))
        if found is None:
            advice = "such as 4096 or 64M" if self.human else "such as 64, without quotes or unit"
            raise IllegalValue("needs a whole number", f"write a whole number {advice}")
        self._bounded(found)
        if self.choices and self.strict and found not in self.choices:
            raise IllegalValue(f"isn't one of vLLM's values for {self.name}", _one_of(self.choices))
        return found

    def _bounded(self, value: float) -> None:
        least, most = _BOUNDS.get(self.name, (-1, float("inf")))
        if value < least:
            raise IllegalValue(f"must be at least {least:g}", f"write {least:g} or more")
        if value > most:
            raise IllegalValue(f"can't be more than {most:g}", f"write {most:g} or less")

    def _text(self, value: object) -> FlagValue:
        if self.choices and self.strict:
            if value in self.choices and not isinstance(value, bool):
                assert isinstance(value, int | str | float)
                return value
            near = _nearest(str(value), [str(choice) for choice in self.choices])
            hint = f"did you mean {near!r}? Or " if near else ""
            raise IllegalValue(f"isn't one of vLLM's values for {self.name}", hint + _one_of(self.choices))
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise IllegalValue("needs text", f"write {self.name} as text")
        return str(value)

    def _json(self, value: object) -> str:
        if isinstance(value, str):
            try:
                if isinstance(json.loads(value), dict):
                    return value
            except ValueError:
                pass
        raise IllegalValue(
            "is a JSON flag",
            f"name its keys with a dot ({self.name}.{next(iter(self.keys or ('key',)))}), or quote a JSON object",
        )

    def _list_advice(self) -> str:
        if "cudagraph" in self.name:
            return "use max-cudagraph-capture-size: vLLM spaces the sizes below it"
        return "leave it out of the space"


class IllegalValue(Exception):
    """A flag can't have this value. `problem` reads after the flag's name; `remedy` says what to write."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem, self.remedy = problem, remedy


class UnknownFlag(Exception):
    """vLLM has no such flag, or it isn't the user's to set. `remedy` names the nearest valid spelling."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem, self.remedy = problem, remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The flags of one installed vLLM. `python` is the interpreter it was read from, `platform` "cpu", "cuda", ...

    `server_flags` belong to the API server: they are known, to say so, but never part of a space.
    """

    vllm_version: str
    platform: str
    python: str
    flags: Mapping[str, Flag]
    server_flags: frozenset[str] = frozenset()
    distribution: str = "vllm"

    def find(self, name: str) -> Flag:
        """The flag, or the key inside a JSON flag, spelled exactly so. Raises UnknownFlag with the nearest spelling."""
        if name in _SET_BY_VTUNE:
            raise UnknownFlag("this flag isn't the space's to set", _SET_BY_VTUNE[name])
        top, *inner = name.split(".")
        flag = self.flags.get(top)
        if flag is None:
            raise self._unknown(top, inner)
        for depth, key in enumerate(inner):
            if flag.kind != "json":
                raise UnknownFlag(f"{flag.name} isn't a JSON flag: it has no keys", f"write {flag.name}")
            if flag.keys is None:
                return Flag(name=name, kind="str", strict=False)
            if key not in flag.keys:
                near = _nearest(key.replace("-", "_"), list(flag.keys))
                known = ", ".join(sorted(flag.keys))
                path = ".".join((top, *inner[:depth]))
                raise UnknownFlag(
                    f"vLLM {self.vllm_version} has no key {key!r} in {path}",
                    f"did you mean {path}.{near}?" if near else f"its keys are {known}",
                )
            flag = flag.keys[key]
        return flag

    def defaults(self) -> Mapping[str, FlagValue]:
        """What vLLM uses for every flag that isn't given, dotted keys included, as far as it is known."""
        found: dict[str, FlagValue] = {}
        for name, flag in self.flags.items():
            if flag.default is not None:
                found[name] = flag.default
            if flag.keys is not None:
                found.update(_key_defaults(name, flag.keys))
        return found

    def undeclared(self, name: str) -> bool:
        """Whether `name` is a key that vLLM doesn't declare, so that any value has to be believed."""
        top, _, inner = name.partition(".")
        return bool(inner) and top in self.flags and self.flags[top].keys is None

    def _unknown(self, name: str, inner: list[str]) -> UnknownFlag:
        tail = "".join(f".{key}" for key in inner)
        plain = _dashed(name)
        if plain in self.flags:
            return UnknownFlag(f"vLLM spells this flag {plain}", f"write {plain}{tail}")
        if plain in self.server_flags or plain in _SET_BY_VTUNE:
            remedy = _SET_BY_VTUNE.get(plain, "remove it: a space holds engine flags only")
            return UnknownFlag("this is a flag of the API server, not of the engine", remedy)
        if plain.startswith("no-") and plain[3:] in self.flags:
            return UnknownFlag("vLLM's --no- form is written as a value", f"write {plain[3:]}: false")
        alias = next((flag.name for flag in self.flags.values() if plain in flag.aliases), None)
        if alias:
            return UnknownFlag(f"this is an alias of {alias}", f"write {alias}{tail}")
        if plain in REPLACED:
            return UnknownFlag(f"vLLM {self.vllm_version} no longer has this flag", REPLACED[plain])
        near = (
            self._key_named(plain)
            or _nearest(plain, list(self.flags))
            # a tail of the name, such as `memory-utilization`
            or next((known for known in self.flags if known.endswith(plain)), None)
        )
        remedy = f"did you mean {near}?" if near else "`vtune flags` lists the flags there are"
        return UnknownFlag(f"vLLM {self.vllm_version} has no such flag", remedy)

    def _key_named(self, name: str) -> str | None:
        key = name.replace("-", "_")
        return next((f"{top}.{key}" for top, flag in self.flags.items() if flag.keys and key in flag.keys), None)

    def to_json(self) -> dict[str, object]:
        return {
            "vllm_version": self.vllm_version,
            "platform": self.platform,
            "python": self.python,
            "distribution": self.distribution,
            "server_flags": sorted(self.server_flags),
            "flags": {name: _to_json(flag) for name, flag in self.flags.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Catalogue:
        """Raises KeyError, TypeError or ValueError when `data` isn't what `to_json` writes."""
        flags, server = data["flags"], data["server_flags"]
        if not isinstance(flags, dict) or not isinstance(server, list) or not flags:
            raise TypeError("flags must be a mapping, server_flags a list")
        return cls(
            vllm_version=str(data["vllm_version"]),
            platform=str(data["platform"]),
            python=str(data["python"]),
            distribution=str(data["distribution"]),
            server_flags=frozenset(map(str, server)),
            flags={name: _from_json(name, flag) for name, flag in flags.items()},
        )


def answer_changing(name: str) -> bool:
    """Whether this flag (or this key of a JSON flag) may change what the model answers."""
    return name in ANSWER_CHANGING or name.partition(".")[0] in ANSWER_CHANGING


def _key_defaults(prefix: str, keys: Mapping[str, Flag]) -> dict[str, FlagValue]:
    found: dict[str, FlagValue] = {}
    for name, key in keys.items():
        if key.keys is not None:
            found.update(_key_defaults(f"{prefix}.{name}", key.keys))
        elif key.default is not None:
            found[f"{prefix}.{name}"] = key.default
    return found


def _dashed(name: str) -> str:
    """ "maxNumSeqs", "max_num_seqs", "--max-num-seqs" -> "max-num-seqs"."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name.strip().lstrip("-"))
    return split.replace("_", "-").replace(" ", "-").lower()


def _nearest(word: str, known: list[str]) -> str | None:
    found = difflib.get_close_matches(word.lower(), [name.lower() for name in known], n=1, cutoff=0.6)
    return next((name for name in known if found and name.lower() == found[0]), None)


def nearest(word: str, known: list[str]) -> str | None:
    """The known name that `word` most looks like; None when none comes close."""
    return _nearest(word, known)


def _one_of(choices: tuple[FlagValue, ...]) -> str:
    return f"write one of {', '.join(map(str, choices))}"


def _to_json(flag: Flag) -> dict[str, object]:
    found: dict[str, object] = {
        "kind": flag.kind,
        "default": flag.default,
        "choices": list(flag.choices),
        "strict": flag.strict,
        "help": flag.help,
        "group": flag.group,
        "nullable": flag.nullable,
        "human": flag.human,
        "auto": flag.auto,
        "negatable": flag.negatable,
        "aliases": list(flag.aliases),
        "keys": None if flag.keys is None else {name: _to_json(key) for name, key in flag.keys.items()},
    }
    return found


def _from_json(name: str, data: Mapping[str, object]) -> Flag:
    keys, choices, aliases, default = data["keys"], data["choices"], data.get("aliases", []), data["default"]
    if data["kind"] not in get_args(Kind):
        raise ValueError(f"{name}: unknown kind {data['kind']!r}")
    if not isinstance(choices, list) or not isinstance(aliases, list) or not isinstance(default, FlagValue):
        raise TypeError(f"{name}: malformed")
    return Flag(
        name=name,
        kind=data["kind"],  # type: ignore[arg-type]
        default=default,
        choices=tuple(choices),
        strict=bool(data["strict"]),
        help=str(data.get("help", "")),
        group=str(data.get("group", "")),
        nullable=bool(data.get("nullable", False)),
        human=bool(data.get("human", False)),
        auto=bool(data.get("auto", False)),
        negatable=bool(data.get("negatable", True)),
        aliases=tuple(map(str, aliases)),
        keys={inner: _from_json(inner, key) for inner, key in keys.items()} if isinstance(keys, dict) else None,
    )
