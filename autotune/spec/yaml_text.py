"""YAML into plain values, without the traps of YAML 1.1 and with the line of every key.

`on`, `off`, `yes`, `no` stay text (YAML 1.1 makes booleans of them), `1e-3` is a number, `010` is ten, a date stays
text, and a key given twice is an error instead of a silent loss.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

from autotune.errors import UserError

Plain = dict[str, "Plain"] | list["Plain"] | str | int | float | bool | None
Where = tuple[str | int, ...]
"""The keys and list positions that lead to a value, from the top of the document."""

_MAX_NODES = 100_000


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2's core schema."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """`value` is the mapping at the top. `file` is what an error calls it: a path, or a description of the text."""

    value: dict[str, Plain]
    file: str
    lines: Mapping[Where, int] = field(default_factory=dict)

    def line(self, where: Where) -> int | None:
        """The line of the deepest part of `where` that the text has."""
        for length in range(len(where), 0, -1):
            if where[:length] in self.lines:
                return self.lines[where[:length]]
        return None

    def error(self, problem: str, *where: str | int, value: object = None, remedy: str | None = None) -> UserError:
        line = self.line(where)
        return UserError(
            problem,
            file=f"{self.file}:{line}" if line else self.file,
            key=".".join(map(str, where)) or None,
            value=value,
            remedy=remedy,
        )


def parse_yaml(text: str, *, file: object) -> Document:
    """Raises UserError, with the line, for text that isn't YAML, is empty, or has no mapping at the top."""
    name = str(file)
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{name}:{mark.line + 1}" if mark else name
        raise UserError(
            f"this is not YAML: {error.problem or error.context}",
            file=at,
            remedy="check the indentation and quote text that holds ': ' or '#'",
        ) from error
    except yaml.YAMLError as error:
        raise UserError(
            f"this is not YAML: {error}".splitlines()[0], file=name, remedy="save it as UTF-8 text"
        ) from error
    if root is None:
        raise UserError("the file is empty", file=name, remedy="start from a shipped one: `vtune init tiny-cpu`")
    reader = _Reader(name)
    value = reader.value(root, ())
    if not isinstance(value, dict):
        raise UserError(
            "the file must be a mapping of keys to values",
            file=name,
            value=value if isinstance(value, str | int | float) else type(value).__name__,
            remedy="start from a shipped one: `vtune init tiny-cpu`",
        )
    return Document(value=value, file=name, lines=reader.lines)


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[Where, int] = {}
        self._seen = 0
        self._open: set[int] = set()

    def value(self, node: yaml.Node, where: Where) -> Plain:
        self._seen += 1
        line = node.start_mark.line + 1
        if self._seen > _MAX_NODES or id(node) in self._open:
            raise UserError(
                "an alias (*name) refers to itself or grows without end",
                file=f"{self.file}:{line}",
                key=".".join(map(str, where)) or None,
                remedy="write the values out",
            )
        self.lines.setdefault(where, line)
        match node:
            case yaml.ScalarNode():
                return self._scalar(node, where)
            case yaml.SequenceNode():
                self._open.add(id(node))
                items: list[Plain] = [self.value(item, (*where, place)) for place, item in enumerate(node.value)]
                self._open.discard(id(node))
                return items
            case yaml.MappingNode():
                self._open.add(id(node))
                found: dict[str, Plain] = {}
                for key_node, value_node in node.value:
                    key = self._key(key_node, where)
                    if key in found:
                        raise UserError(
                            f"the key is given twice (first in line {self.lines[(*where, key)]})",
                            file=f"{self.file}:{key_node.start_mark.line + 1}",
                            key=".".join(map(str, (*where, key))),
                            remedy="keep one of them",
                        )
                    self.lines[(*where, key)] = key_node.start_mark.line + 1
                    found[key] = self.value(value_node, (*where, key))
                self._open.discard(id(node))
                return found
            case _:
                raise AssertionError(f"PyYAML composes no {type(node).__name__}")

    def _key(self, node: yaml.Node, where: Where) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise UserError(
                "a key must be text",
                file=f"{self.file}:{node.start_mark.line + 1}",
                key=".".join(map(str, where)) or None,
            )
        return str(node.value)

    def _scalar(self, node: yaml.ScalarNode, where: Where) -> Plain:
        text = str(node.value)
        match node.tag.rpartition(":")[2]:
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text, 16) if "x" in text else int(text)
            case "float":
                return float(text)
            case "null":
                return None
            case "str":
                return text
            case tag:
                raise UserError(
                    f"the tag !{tag.lstrip('!')} means nothing here",
                    file=f"{self.file}:{node.start_mark.line + 1}",
                    key=".".join(map(str, where)) or None,
                    value=text,
                    remedy="remove the tag",
                )
