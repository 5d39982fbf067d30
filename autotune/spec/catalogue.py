"""What flags an installed vLLM has, and whether a value fits one. Read by `engine.catalogue`, judged here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.spec.config import FlagValue
from autotune.spec.flag import Flag, flag_from_json, flag_to_json, nearest
from autotune.spec.flag_changes import REPLACED

__all__ = ["ANSWER_CHANGING", "Catalogue", "Flag", "UnknownFlag", "answer_changing", "nearest", "release"]

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
                near = nearest(key.replace("-", "_"), list(flag.keys))
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
            or nearest(plain, list(self.flags))
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
            "flags": {name: flag_to_json(flag) for name, flag in self.flags.items()},
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
            flags={name: flag_from_json(name, flag) for name, flag in flags.items()},
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


def release(version: str) -> tuple[int, ...]:
    """ "0.32.0rc1+cpu" -> (0, 32, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group(0).split(".")) if match else ()
