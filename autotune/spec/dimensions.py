"""From the sections of a space file to ordered dimensions: conflicts, conditions, gating."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.spec.catalogue import answer_changing
from autotune.spec.config import FlagValue
from autotune.spec.domains import parse_entry, parse_value
from autotune.spec.flag import Flag, nearest
from autotune.spec.flag_values import FlagReader
from autotune.spec.space import Bundles, Choice, Condition, Dimension, FloatRange, IntRange

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:$|_)", re.IGNORECASE)
_OWN_ENV = {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "VLLM_PLUGINS", "PYTHONPATH", "VLLM_PORT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """`conditions`: dimension -> (section, other name, values as written), still to be resolved."""

    fixed: Mapping[str, FlagValue]
    fixed_env: Mapping[str, str]
    dimensions: tuple[Dimension, ...]
    conditions: Mapping[str, tuple[str, str, tuple[object, ...]]]

    def values_of(self, name: str) -> tuple[str, tuple[FlagValue, ...]]:
        """The section where a flag gets its value, and what it may be (the ends of a range); none when not given."""
        if name in self.fixed:
            return "fixed", (self.fixed[name],)
        for dimension in self.dimensions:
            if dimension.name == name:
                match dimension.domain:
                    case Choice(values=values):
                        return "search", values
                    case IntRange(low=low, high=high) | FloatRange(low=low, high=high):
                        return "search", (low, high)
        return "fixed", ()


def draft_space(
    reader: FlagReader,
    *,
    fixed: Mapping[str, object],
    env: Mapping[str, object],
    search: Mapping[str, object],
    bundles: Mapping[str, object],
) -> Draft:
    values = reader.flags(fixed, "fixed")
    values_env: dict[str, str] = {}
    found: list[Dimension] = []
    conditions: dict[str, tuple[str, str, tuple[object, ...]]] = {}
    for name, given in search.items():
        if name in values:
            raise reader.document.error(
                "this flag is fixed and searched at once",
                "search",
                name,
                value=str(values[name]),
                remedy="remove it from `fixed` or from `search`",
            )
        entry = reader.entry(name, given, "search", name)
        if entry.domain is None and entry.when is None:
            values[name] = entry.value
            continue
        if entry.when is not None:
            conditions[name] = ("search", *entry.when)
        # One value under a condition is still a dimension: it is given only where the condition holds.
        domain = entry.domain or Choice(values=(entry.value,))
        found.append(Dimension(name=name, domain=domain, gated=entry.gated or answer_changing(name)))
    for name, given in env.items():
        dimension = _environment(name, given, reader, values_env, conditions)
        if dimension is not None:
            found.append(dimension)
    taken = dict.fromkeys(values, "fixed") | {one.name: "search" for one in found}
    for name, options in bundles.items():
        found.append(_bundle(name, options, reader, taken))
    for dimension in found:
        if dimension.target == "flag":
            reader.no_flag_twice({**values, **{one.name: "" for one in found if one.target == "flag"}}, "search")
            break
    return Draft(fixed=values, fixed_env=values_env, dimensions=tuple(found), conditions=conditions)


def _environment(
    name: str,
    given: object,
    reader: FlagReader,
    fixed: dict[str, str],
    conditions: dict[str, tuple[str, str, tuple[object, ...]]],
) -> Dimension | None:
    document = reader.document
    if not _ENV_NAME.fullmatch(name):
        raise document.error(
            "this is no name of an environment variable", "env", name, remedy="use letters, digits and _"
        )
    if _SECRET.search(name):
        raise document.error(
            "a space is no place for secrets",
            "env",
            name,
            remedy="set it in the shell: engines inherit the environment",
        )
    if name in _OWN_ENV:
        raise document.error("the search sets this variable itself", "env", name, remedy="remove it")
    as_text = Flag(name=name, kind="str")
    entry = parse_entry(given, as_text, document, ("env", name))
    if entry.domain is None and entry.when is None:
        if entry.value is not None:
            fixed[name] = str(entry.value)
        return None
    if entry.when is not None:
        conditions[name] = ("env", *entry.when)
    domain = entry.domain or Choice(values=(entry.value,))
    return Dimension(name=name, domain=domain, target="env", gated=entry.gated)


def _bundle(name: str, options: object, reader: FlagReader, taken: Mapping[str, str]) -> Dimension:
    document = reader.document
    if name in reader.catalogue.flags:
        raise document.error(
            "a bundle can't have the name of a flag", "bundles", name, remedy=f"rename it, to {name}-bundle or so"
        )
    if not isinstance(options, Mapping) or len(options) < 2:
        raise document.error(
            "a bundle has two or more options, each with its flags",
            "bundles",
            name,
            value=None if isinstance(options, Mapping) else str(options),
            remedy="write {plain: {}, awq: {model: ..., quantization: awq}}",
        )
    read: dict[str, dict[str, FlagValue]] = {}
    for option, flags in options.items():
        where = ("bundles", name, option)
        if not isinstance(flags, Mapping):
            raise document.error(
                "an option is a mapping of flags to values", *where, value=str(flags), remedy="write {} for none"
            )
        own = dict(flags)
        checkpoint = own.pop("model", None)
        read[option] = reader.flags(own, *where)
        if checkpoint is not None:
            if not isinstance(checkpoint, str):
                raise document.error("a model is text", *where, "model", value=str(checkpoint), remedy="write its name")
            read[option]["model"] = checkpoint
        for flag in read[option]:
            if flag in taken:
                raise document.error(
                    f"this flag is set by the bundle and under `{taken[flag]}`",
                    *where,
                    flag,
                    value=str(read[option][flag]),
                    remedy=f"remove it from `{taken[flag]}`",
                )
    gated = any(answer_changing(flag) for flags in read.values() for flag in flags)
    return Dimension(name=name, domain=Bundles(options=read), target="bundle", gated=gated)


def finish_space(
    draft: Draft, reader: FlagReader, *, allow_all: bool, allow: Collection[str]
) -> tuple[tuple[Dimension, ...], tuple[str, ...], tuple[str, ...]]:
    """(dimensions in an order where conditions point backwards, pinned names, notices)."""
    for name in allow:
        names = [dimension.name for dimension in draft.dimensions]
        if name not in names:
            raise reader.document.error(
                "this space doesn't search what was allowed by name",
                value=name,
                remedy=f"name one of {', '.join(names) or 'its flags (it has none)'}",
            )
    pinned = {one.name for one in draft.dimensions if one.gated and not allow_all and one.name not in allow}
    kept, lost = _with_conditions(draft, reader, pinned)
    while orphan := next((one for one in kept if one.when and one.when.name in {name for name, _ in lost}), None):
        assert orphan.when is not None
        kept.remove(orphan)
        lost.append((orphan.name, orphan.when.name))
    notices = [
        f"{name} stays at its baseline, because it may change the model's answers (--allow-quality-loss searches it)"
        for name in sorted(pinned)
    ]
    notices += [f"{name} isn't searched: it depends on {other}, which stays at its baseline" for name, other in lost]
    return _ordered(kept, reader), tuple(sorted(pinned)), tuple(notices)


def _with_conditions(
    draft: Draft, reader: FlagReader, pinned: set[str]
) -> tuple[list[Dimension], list[tuple[str, str]]]:
    """The dimensions with their conditions resolved. A condition on what can't vary is decided here and now."""
    by_name = {dimension.name: dimension for dimension in draft.dimensions}
    defaults = reader.catalogue.defaults()
    kept: list[Dimension] = []
    lost: list[tuple[str, str]] = []
    for dimension in draft.dimensions:
        if dimension.name in pinned:
            continue
        if dimension.name not in draft.conditions:
            kept.append(dimension)
            continue
        section, other, given = draft.conditions[dimension.name]
        where = (section, dimension.name, "when", other)
        if other == dimension.name:
            raise reader.document.error("a flag can't depend on itself", *where, remedy="name another flag")
        if other in by_name and other not in pinned:
            values = _condition_values(given, by_name[other], reader, where)
            kept.append(replace(dimension, when=Condition(name=other, values=values)))
            continue
        if other not in by_name and not _is_flag(other, reader):
            names = [*by_name, *reader.catalogue.flags]
            near = nearest(other, names)
            raise reader.document.error(
                "this condition names neither a flag nor anything else that this space searches",
                *where,
                value=other,
                remedy=f"did you mean {near}?" if near else "name a flag or a bundle of this space",
            )
        target = by_name.get(other)
        if target is not None and target.target == "bundle":
            lost.append((dimension.name, other))
            continue
        flag = reader.flag(other, *where) if _is_flag(other, reader) else Flag(name=other, kind="str")
        values = tuple(parse_value(value, flag, reader.document, where) for value in given)
        now = draft.fixed.get(other, defaults.get(other))
        if now in values and not any(now == value and type(now) is not type(value) for value in values):
            kept.append(dimension)
        elif other in pinned:
            lost.append((dimension.name, other))
        else:
            raise reader.document.error(
                f"this never becomes active: {other} isn't searched here and is {now!r}",
                *where,
                value=", ".join(map(str, given)),
                remedy=f"search {other} too, or remove `when`",
            )
    return kept, lost


def _is_flag(name: str, reader: FlagReader) -> bool:
    return name.partition(".")[0] in reader.catalogue.flags


def _condition_values(
    given: Sequence[object], target: Dimension, reader: FlagReader, where: tuple[str, ...]
) -> tuple[FlagValue, ...]:
    """Checked against what the other dimension can be, so that a typo doesn't switch a dimension off for good."""
    if target.target == "flag" and not reader.catalogue.undeclared(target.name):
        flag = reader.flag(target.name, *where)
    else:
        flag = Flag(name=target.name, kind="str")
    legal: tuple[FlagValue, ...] | None
    match target.domain:
        case Choice(values=legal):
            pass
        case Bundles(options=options):
            legal = tuple(options)
        case _:
            legal = None
    found: list[FlagValue] = []
    for one in given:
        raw = one if isinstance(one, bool | int | float | str) or one is None else str(one)
        value = raw if reader.catalogue.undeclared(target.name) else parse_value(raw, flag, reader.document, where)
        if legal is not None and value not in legal:
            raise reader.document.error(
                f"{target.name} never has this value in this space",
                *where,
                value=raw,
                remedy=f"name one of {', '.join(map(str, legal))}",
            )
        found.append(value)
    if not found:
        raise reader.document.error("this condition names no value", *where, remedy="list the values")
    return tuple(found)


def _ordered(dimensions: Sequence[Dimension], reader: FlagReader) -> tuple[Dimension, ...]:
    """As written, but each after the one its condition names."""
    left = list(dimensions)
    done: list[Dimension] = []
    placed: set[str] = set()
    while left:
        ready = next((one for one in left if one.when is None or one.when.name in placed), None)
        if ready is None:
            circle = ", ".join(one.name for one in left)
            raise reader.document.error(
                "these conditions wait for each other", "search", value=circle, remedy="remove one of them"
            )
        left.remove(ready)
        done.append(ready)
        placed.add(ready.name)
    return tuple(done)
