"""Coupling rules between flags, such as `max-num-batched-tokens >= max-num-seqs`.

Parsed with `ast` and walked node by node: only comparisons, arithmetic, `and`, `or`, `not`, numbers, strings and flag
names are allowed, so a rule can't run anything.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from autotune.spec.config import FlagValue

_OPERATORS: dict[type[ast.AST], Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}
_WORD = re.compile(r"'[^']*'|\"[^\"]*\"|[A-Za-z_][\w.]*(?:-[A-Za-z][\w.]*)*")
_KEYWORDS = {"and", "or", "not", "true", "false", "True", "False"}


class UnknownValue(Exception):
    """A rule reads a flag whose value isn't known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    text: str

    def __post_init__(self) -> None:
        """Raises ValueError, with the part that isn't allowed, when the text is not a rule."""
        tree, _ = _parse(self.text)
        _check(tree.body)

    @property
    def names(self) -> frozenset[str]:
        """The flags it reads."""
        return frozenset(_parse(self.text)[1].values())

    def holds(self, flags: Mapping[str, FlagValue]) -> bool | None:
        """Whether the flags obey it; None when it reads a flag that has no known value."""
        tree, names = _parse(self.text)
        try:
            return bool(_value(tree.body, {alias: flags.get(name) for alias, name in names.items()}))
        except UnknownValue:
            return None


@lru_cache(maxsize=512)
def _parse(text: str) -> tuple[ast.Expression, dict[str, str]]:
    """Flag names have dashes, which Python would read as minus: each becomes an alias first.

    A dash belongs to a name when letters touch it on both sides; write spaces round a minus.
    """
    names: dict[str, str] = {}

    def alias(match: re.Match[str]) -> str:
        word = match.group(0)
        if word[0] in "'\"":
            return word
        if word in _KEYWORDS:
            return word.capitalize() if word in ("true", "false") else word
        key = next((known for known, name in names.items() if name == word), f"f{len(names)}")
        names[key] = word
        return key

    try:
        return ast.parse(_WORD.sub(alias, text).strip(), mode="eval"), names
    except SyntaxError as error:
        raise ValueError(f"not a rule: {text!r}") from error


def _check(node: ast.expr) -> None:
    match node:
        case ast.Constant(value=bool() | int() | float() | str()) | ast.Name():
            return
        case ast.BoolOp(values=values):
            parts = values
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            parts = [left, right]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            parts = [operand]
        case ast.Compare(left=left, ops=ops, comparators=comparators) if all(type(o) in _OPERATORS for o in ops):
            parts = [left, *comparators]
        case _:
            raise ValueError(f"{type(node).__name__} is not allowed in a rule: only comparisons and arithmetic are")
    for part in parts:
        _check(part)


def _value(node: ast.expr, flags: Mapping[str, FlagValue]) -> object:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if flags[name] is None:
                raise UnknownValue(name)
            return flags[name]
        case ast.BoolOp(op=op, values=values):
            stop_at = isinstance(op, ast.Or)
            return next((stop_at for part in values if bool(_value(part, flags)) is stop_at), not stop_at)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, flags), _value(right, flags))
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_value(operand, flags))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            here = _value(left, flags)
            for comparison, comparator in zip(ops, comparators, strict=True):
                there = _value(comparator, flags)
                if not _OPERATORS[type(comparison)](here, there):
                    return False
                here = there
            return True
        case _:
            raise AssertionError(f"_check lets no {type(node).__name__} through")
