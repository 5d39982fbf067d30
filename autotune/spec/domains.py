"""One entry of a space's `search`: a scalar, a list, a range, or a mapping with a condition, into a domain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from autotune.spec.config import FlagValue
from autotune.spec.flag import Flag, IllegalValue
from autotune.spec.schema import validated
from autotune.spec.space import Choice, FloatRange, IntRange
from autotune.spec.yaml_text import Document, Where

FROM_WORKLOAD = "from-workload"


class _Entry(BaseModel):
    """The mapping form. `when` names one other dimension or flag and the values that make this one active."""

    model_config = ConfigDict(extra="forbid", strict=True)

    choices: list[Any] | None = None
    min: Any = None
    max: Any = None
    step: Any = None
    multiple_of: Any = None
    log: bool = False
    when: dict[str, Any] | None = Field(default=None)
    quality: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """`domain` None: there is one value only, and it is `value`. `when`: (name, values as written)."""

    domain: Choice | IntRange | FloatRange | None
    value: FlagValue = None
    when: tuple[str, tuple[object, ...]] | None = None
    gated: bool = False


def parse_entry(given: object, flag: Flag, document: Document, where: Where) -> Entry:
    """Raises UserError naming file, line, key, value and remedy."""
    if isinstance(given, list):
        return _choices(given, flag, document, where, Entry(domain=None))
    if not isinstance(given, Mapping):
        return Entry(domain=None, value=parse_value(given, flag, document, where))
    entry = validated(_Entry, document, where)
    if entry.quality not in (None, "gated"):
        raise document.error(
            "quality can only be `gated`", *where, "quality", value=entry.quality, remedy="write quality: gated"
        )
    shell = Entry(domain=None, when=_when(entry, document, where), gated=entry.quality == "gated")
    ranged = [key for key in ("min", "max", "step", "multiple_of") if getattr(entry, key) is not None]
    if entry.choices is not None and (ranged or entry.log):
        raise document.error(
            "a domain is either `choices` or a range",
            *where,
            value=", ".join(["choices", *ranged]),
            remedy="remove one of them",
        )
    if entry.choices is not None:
        return _choices(entry.choices, flag, document, (*where, "choices"), shell)
    if entry.min is None or entry.max is None:
        raise document.error(
            "a domain needs `choices`, or both `min` and `max`",
            *where,
            value=", ".join(str(key) for key in given) or "nothing",
            remedy="write a list of values, or {min: 1, max: 8}",
        )
    return _range(entry, flag, document, where, shell)


def parse_value(given: object, flag: Flag, document: Document, where: Where) -> FlagValue:
    try:
        return flag.parse(given)
    except IllegalValue as illegal:
        shown = given if isinstance(given, str | int | float | bool) else str(given)
        raise document.error(
            f"this {illegal.problem}",
            *where,
            value=shown,
            remedy=illegal.remedy,
        ) from None


def _when(entry: _Entry, document: Document, where: Where) -> tuple[str, tuple[object, ...]] | None:
    if entry.when is None:
        return None
    if len(entry.when) != 1:
        raise document.error(
            "`when` names exactly one other flag",
            *where,
            "when",
            value=", ".join(entry.when) or "none",
            remedy="keep one, and put the other condition on that flag's own entry",
        )
    name, values = next(iter(entry.when.items()))
    return name, tuple(values) if isinstance(values, list) else (values,)


def _choices(given: list[Any], flag: Flag, document: Document, where: Where, shell: Entry) -> Entry:
    if not given:
        raise document.error("there is nothing to choose from", *where, remedy="give at least two values")
    values: list[FlagValue] = []
    for place, one in enumerate(given):
        value = parse_value(one, flag, document, (*where, place))
        if any(type(value) is type(other) and value == other for other in values):
            raise document.error("this value is given twice", *where, place, value=one, remedy="keep one of them")
        values.append(value)
    if len(values) == 1:
        return Entry(domain=None, value=values[0], when=shell.when, gated=shell.gated)
    return Entry(domain=Choice(values=tuple(values)), when=shell.when, gated=shell.gated)


def _range(entry: _Entry, flag: Flag, document: Document, where: Where, shell: Entry) -> Entry:
    if flag.kind not in ("int", "float"):
        raise document.error(
            f"a range needs a number, and this flag takes {'true or false' if flag.kind == 'bool' else 'text'}",
            *where,
            value=f"min {entry.min}, max {entry.max}",
            remedy="list its values instead",
        )
    low, high = (_bound(getattr(entry, key), flag, document, (*where, key)) for key in ("min", "max"))
    if low > high:
        raise document.error("min is larger than max", *where, value=f"min {low:g}, max {high:g}", remedy="swap them")
    if entry.log and low <= 0:
        raise document.error(
            "a log range begins above 0", *where, "min", value=entry.min, remedy="raise min, or drop log"
        )
    step = _step(entry, flag, document, where)
    if step is not None and entry.multiple_of is not None:
        low = -(-low // step) * step
        high = high // step * step
        if low > high:
            raise document.error(
                f"there is no multiple of {step:g} between min and max",
                *where,
                "multiple_of",
                value=entry.multiple_of,
                remedy="widen the range",
            )
    if low == high:
        value: FlagValue = int(low) if flag.kind == "int" else float(low)
        return Entry(domain=None, value=value, when=shell.when, gated=shell.gated)
    domain: IntRange | FloatRange
    if flag.kind == "int":
        whole = int(step or 1)
        top = int(low) + (int(high) - int(low)) // whole * whole
        domain = IntRange(low=int(low), high=top, step=whole, log=entry.log)
    else:
        domain = FloatRange(low=float(low), high=float(high), step=step, log=entry.log)
    return Entry(domain=domain, when=shell.when, gated=shell.gated)


def _bound(given: object, flag: Flag, document: Document, where: Where) -> int | float:
    value = parse_value(given, flag, document, where)
    if isinstance(value, str) or value is None:
        raise document.error("an end of a range must be a number", *where, value=given, remedy="write a number")
    return value


def _step(entry: _Entry, flag: Flag, document: Document, where: Where) -> float | None:
    given = [(key, getattr(entry, key)) for key in ("step", "multiple_of") if getattr(entry, key) is not None]
    if not given:
        return None
    if len(given) == 2:
        raise document.error(
            "a range has a `step` (counted from min) or a `multiple_of` (counted from 0)",
            *where,
            value="both",
            remedy="keep one of them",
        )
    key, step = given[0]
    if entry.log:
        raise document.error(
            f"`log` and `{key}` don't go together",
            *where,
            key,
            value=step,
            remedy="list the values, such as [512, 1024, 2048, 4096]",
        )
    right = (int,) if flag.kind == "int" else (int, float)
    if isinstance(step, bool) or not isinstance(step, right) or step <= 0:
        raise document.error(
            f"{key} must be a {'whole ' if flag.kind == 'int' else ''}number above 0",
            *where,
            key,
            value=step,
            remedy=f"write {key}: 1" if flag.kind == "int" else f"write {key}: 0.05",
        )
    return float(step)
