"""One engine argument and what values fit it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

from autotune.spec.config import FlagValue

Kind = Literal["bool", "int", "float", "str", "json", "list"]

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
            near = nearest(str(value), [str(choice) for choice in self.choices])
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


def nearest(word: str, known: list[str]) -> str | None:
    """The known name that `word` most looks like; None when none comes close."""
    found = difflib.get_close_matches(word.lower(), [name.lower() for name in known], n=1, cutoff=0.6)
    return next((name for name in known if found and name.lower() == found[0]), None)


def _one_of(choices: tuple[FlagValue, ...]) -> str:
    return f"write one of {', '.join(map(str, choices))}"


def flag_to_json(flag: Flag) -> dict[str, object]:
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
        "keys": None if flag.keys is None else {name: flag_to_json(key) for name, key in flag.keys.items()},
    }
    return found


def flag_from_json(name: str, data: Mapping[str, object]) -> Flag:
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
        keys={inner: flag_from_json(inner, key) for inner, key in keys.items()} if isinstance(keys, dict) else None,
    )
