"""The flags of a catalogue as a list, JSON flags followed by their keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.spec.catalogue import Catalogue, Flag, answer_changing

Named = tuple[str, Flag]


def listed(catalogue: Catalogue, wanted: str | None) -> list[Named]:
    """By name; with `wanted` those whose name, group or help has it. Names that match come first."""
    everything = list(_named(catalogue.flags))
    if not wanted:
        return everything
    part = wanted.lower().lstrip("-").replace("_", "-")
    by_name = [entry for entry in everything if part in entry[0].lower().replace("_", "-")]
    by_text = [
        (name, flag)
        for name, flag in everything
        if wanted.lower() in f"{flag.group}\n{flag.help}".lower() and (name, flag) not in by_name
    ]
    return by_name + by_text


def flag_form(name: str, flag: Flag) -> dict[str, Any]:
    """`gated`: it may change what the model answers (docs/spaces.md)."""
    return {
        "name": name,
        "type": flag.kind,
        "choices": list(flag.choices),
        "default": flag.default,
        "help": flag.help,
        "group": flag.group,
        "gated": answer_changing(name),
    }


def shown_type(flag: Flag) -> str:
    if not flag.choices:
        return flag.kind
    return " | ".join(str(choice) for choice in flag.choices) + ("" if flag.strict else " | ...")


def shown_default(flag: Flag) -> str:
    match flag.default:
        case None:
            return "-"
        case bool():
            return "true" if flag.default else "false"
        case _:
            return str(flag.default)


def _named(flags: Mapping[str, Flag], prefix: str = "") -> Iterator[Named]:
    for name, flag in sorted(flags.items()):
        yield prefix + name, flag
        yield from _named(flag.keys or {}, f"{prefix}{name}.")
