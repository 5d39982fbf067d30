"""Flags and their values as a space file gives them, looked up in the catalogue; every error names the place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.spec.catalogue import Catalogue, UnknownFlag
from autotune.spec.config import FlagValue
from autotune.spec.domains import FROM_WORKLOAD, Entry, parse_entry, parse_value
from autotune.spec.flag import Flag
from autotune.spec.yaml_text import Document, Where


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagReader:
    catalogue: Catalogue
    document: Document
    model_length: int
    """What `from-workload` stands for."""

    def flag(self, name: str, *where: str | int, value: object = None) -> Flag:
        """The flag of this name, or UserError with the nearest spelling."""
        try:
            return self.catalogue.find(name)
        except UnknownFlag as unknown:
            raise self.document.error(
                unknown.problem, *where, value=name if value is None else value, remedy=unknown.remedy
            ) from None

    def flags(self, given: Mapping[str, object], *where: str | int) -> dict[str, FlagValue]:
        """A mapping of flags to single values; a mapping under a JSON flag becomes its dotted keys."""
        found: dict[str, FlagValue] = {}
        for name, value in given.items():
            found.update(self._value(name, value, (*where, name)))
        self.no_flag_twice(found, *where)
        return found

    def entry(self, name: str, given: object, *where: str | int) -> Entry:
        """One entry of `search`."""
        flag = self.flag(name, *where)
        if self.from_workload(name, given):
            return Entry(domain=None, value=self.model_length)
        if self.catalogue.undeclared(name):
            return parse_entry(given, _like(given, flag), self.document, where)
        return parse_entry(given, flag, self.document, where)

    def from_workload(self, name: str, given: object) -> bool:
        return name == "max-model-len" and given == FROM_WORKLOAD

    def no_flag_twice(self, flags: Mapping[str, object], *where: str | int) -> None:
        """A JSON flag given whole and by its keys at once has two values."""
        for name in flags:
            top, _, inner = name.partition(".")
            if inner and top in flags:
                raise self.document.error(
                    f"{top} is given whole and by its key {inner}",
                    *where,
                    name,
                    value=str(flags[name]),
                    remedy="put the key into the whole, or write keys only",
                )

    def _value(self, name: str, given: object, where: Where) -> dict[str, FlagValue]:
        flag = self.flag(name, *where)
        if isinstance(given, Mapping) and flag.kind == "json":
            found: dict[str, FlagValue] = {}
            for key, inner in given.items():
                found.update(self._value(f"{name}.{key}", inner, (*where, key)))
            return found
        if isinstance(given, list | Mapping):
            raise self.document.error(
                "this must be one value",
                *where,
                value=str(given),
                remedy="several values to try belong under `search`",
            )
        if self.from_workload(name, given):
            return {name: self.model_length}
        if self.catalogue.undeclared(name):
            return {name: _scalar(given)}
        return {name: parse_value(given, flag, self.document, where)}


def _scalar(given: object) -> FlagValue:
    assert given is None or isinstance(given, bool | int | float | str)
    return given


def _like(given: object, flag: Flag) -> Flag:
    """vLLM declares nothing about this key, so the type of what was written is believed."""
    samples = given if isinstance(given, list) else [given]
    if isinstance(given, Mapping):
        choices = given.get("choices")
        samples = choices if isinstance(choices, list) else [given.get("min"), given.get("max")]
    kinds = {type(sample) for sample in samples if sample is not None}
    if kinds == {bool}:
        return Flag(name=flag.name, kind="bool")
    if kinds == {int}:
        return Flag(name=flag.name, kind="int")
    if kinds and kinds <= {int, float}:
        return Flag(name=flag.name, kind="float")
    return Flag(name=flag.name, kind="str")
