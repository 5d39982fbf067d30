"""Quantities as people write them ("2 s", "24 GiB", "4 /s"), turned into the one unit that the code uses.

Every parser raises ValueError with a text that says what would be right; the caller adds file and key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9]+"
_QUANTITY = re.compile(rf"({_NUMBER})\s*([^\s0-9.]*)")

_SECONDS: Mapping[str, float] = {
    **dict.fromkeys(("us", "µs", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_BYTES: Mapping[str, int] = {
    "B": 1,
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
    **{f"{prefix}B": 1000**power for power, prefix in enumerate(("k", "M", "G", "T"), start=1)},
    # As vLLM's own flags read them: capitals are binary, small letters decimal.
    **{prefix: 1024**power for power, prefix in enumerate("KMGT", start=1)},
    **{prefix: 1000**power for power, prefix in enumerate("kmgt", start=1)},
}
_PER_SECOND: Mapping[str, float] = {
    **dict.fromkeys(("/s", "rps", "req/s", "requests/s", "tok/s", "tokens/s"), 1.0),
    **dict.fromkeys(("/min", "rpm", "req/min", "requests/min"), 1 / 60),
    **dict.fromkeys(("/h", "req/h", "requests/h"), 1 / 3600),
}


def duration_s(given: object) -> float:
    """ "150 ms", "2 s", "1 h 30 min" in seconds. A bare number is refused: it could be any unit."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise ValueError("a duration is text such as '2 s', '150 ms' or '1 h 30 min'")
    text = str(given).strip()
    parts = _QUANTITY.findall(text)
    rest = _QUANTITY.sub("", text).strip()
    if not parts or rest:
        raise ValueError("a duration is text such as '2 s', '150 ms' or '1 h 30 min'")
    total = 0.0
    for number, unit in parts:
        if unit not in _SECONDS:
            raise ValueError(_unit_advice("duration", number, unit, ("ms", "s", "min", "h")))
        total += float(number) * _SECONDS[unit]
    return total


def size_bytes(given: object) -> int:
    """ "24 GiB", "64M" (binary, as vLLM reads it), "64m" (decimal), or a whole number of bytes."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    number, unit = _one(given, "a size is text such as '24 GiB' or '64M'")
    if unit not in _BYTES:
        raise ValueError(_unit_advice("size", number, unit, ("B", "KiB", "MiB", "GiB", "TiB")))
    return round(float(number) * _BYTES[unit])


def size_gib(given: object) -> float:
    return size_bytes(given) / 1024**3


def rate_per_s(given: object) -> float:
    """ "4 /s", "2.5 rps", "120 /min", "500 tok/s" per second. A bare number is refused."""
    number, unit = _one(given, "a rate is text such as '4 /s' or '120 /min'")
    if unit not in _PER_SECOND:
        raise ValueError(_unit_advice("rate", number, unit, ("/s", "/min", "/h")))
    return float(number) * _PER_SECOND[unit]


def share(given: object) -> float:
    """0.05 or "5 %", between 0 and 1."""
    if isinstance(given, str) and given.strip().endswith("%"):
        number, _ = _one(given.strip().removesuffix("%"), "a share is a number such as 0.05, or '5 %'")
        found = float(number) / 100
    elif isinstance(given, str):
        number, unit = _one(given, "a share is a number such as 0.05, or '5 %'")
        found = float(number) if not unit else -1.0
    else:
        found = number_of(given)
    if not 0 <= found <= 1:
        raise ValueError("a share lies between 0 and 1 (or '0 %' and '100 %')")
    return found


def number_of(given: object) -> float:
    """A plain number; for metrics without a unit."""
    if isinstance(given, str):
        number, unit = _one(given, "it has no unit: write a number")
        if unit:
            raise ValueError("it has no unit: write a number")
        return float(number)
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ValueError("it has no unit: write a number")
    return float(given)


def _one(given: object, advice: str) -> tuple[str, str]:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise ValueError(advice)
    match = _QUANTITY.fullmatch(str(given).strip())
    if match is None:
        raise ValueError(advice)
    return match.group(1), match.group(2)


def _unit_advice(kind: str, number: str, unit: str, known: tuple[str, ...]) -> str:
    problem = f"{unit!r} is no unit of a {kind}" if unit else f"this {kind} needs a unit"
    return f"{problem}: write for example {', '.join(f'{number} {name}' for name in known)}"
