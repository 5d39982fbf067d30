"""One way in which one class of failure is worded."""

from __future__ import annotations

import re
from dataclasses import dataclass

NUMBER = r"\d[\d,]*(?:\.\d+)?"
OOM = "oom"
"""Stands for the `oom.` class of the stage it happened in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Named groups of the pattern become facts: numbers with units in their names, or words."""

    cause: str
    pattern: re.Pattern[str]


def rule(cause: str, *patterns: str) -> Rule:
    """`patterns`: any of them. `<N>` stands for a number, `<G>` for one in GiB."""
    text = "|".join(patterns).replace("<N>", NUMBER).replace("<G>", rf"-?{NUMBER}")
    return Rule(cause=cause, pattern=re.compile(text, re.IGNORECASE))
