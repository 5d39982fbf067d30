"""One configuration of a vLLM engine: the model and the flags it is started with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

FlagValue = bool | int | float | str | None
"""A flag's value as YAML and JSON have it. None means "not given": vLLM's own default applies."""

PARALLEL_FLAGS = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """`flags` are spelled as vLLM spells them, without the dashes (`max-num-seqs`).

    A dotted name is a key inside a JSON flag (`compilation-config.cudagraph_mode`). `env` holds environment
    variables that belong to the candidate (`VLLM_ATTENTION_BACKEND`); never secrets.
    """

    model: str
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """Devices that one engine needs: tensor x pipeline x data parallel ranks."""
        ranks = 1
        for name in PARALLEL_FLAGS:
            value = self.flags.get(name)
            ranks *= int(value) if value is not None else 1
        return ranks

    def degree(self, name: str) -> int:
        """Of one kind of parallelism; 1 where it is not given."""
        value = self.flags.get(name)
        return value if isinstance(value, int) and value >= 1 else 1

    @property
    def key(self) -> str:
        """The same text for the same effective configuration, whatever the order of its flags."""
        given = {name: value for name, value in self.flags.items() if value is not None}
        return json.dumps([self.model, given, dict(self.env)], sort_keys=True)

    def argv(self) -> list[str]:
        """The flags as command-line words; the model isn't among them.

        A boolean becomes `--flag` or `--no-flag`; keys of one JSON flag are gathered into one JSON value.
        """
        words: list[str] = []
        nested: dict[str, dict[str, FlagValue]] = {}
        for name, value in sorted(self.flags.items()):
            if value is None:
                continue
            flag, _, inner = name.partition(".")
            if inner:
                nested.setdefault(flag, {})[inner] = value
            elif isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                words += [f"--{flag}", str(value)]
        for flag, keys in nested.items():
            words += [f"--{flag}", json.dumps(_tree(keys), sort_keys=True)]
        return words


def number_of(flags: Mapping[str, FlagValue], name: str, default: float) -> float:
    """A flag as a number; `default` where it isn't given, is "auto" or the like."""
    value = flags.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _tree(dotted: Mapping[str, FlagValue]) -> dict[str, object]:
    """{"a.b": 1, "c": 2} -> {"a": {"b": 1}, "c": 2}."""
    root: dict[str, object] = {}
    for name, value in dotted.items():
        *parents, leaf = name.split(".")
        here = root
        for parent in parents:
            child = here.setdefault(parent, {})
            assert isinstance(child, dict), f"{name} is both a value and a group"
            here = child
        here[leaf] = value
    return root
