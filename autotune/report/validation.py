"""What the installed vLLM said of a space before anything was launched."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from autotune.engine.validator import Refused, Unknown, Valid, Validity
from autotune.report.evidence import shown_value
from autotune.spec.config import EngineConfig
from autotune.spec.one_change import Change, one_change_each
from autotune.spec.problem import Problem

MOST_ASKED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """`change`: what sets it apart from the default."""

    change: str
    answer: Validity


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """`not_asked`: why nothing more was asked; None where every question was put. `left_out`: configurations that
    differ in one dimension and were too many to ask about. `import_s`: before the first answer."""

    asked: tuple[Asked, ...] = ()
    not_asked: str | None = None
    left_out: int = 0
    import_s: float | None = None

    @property
    def refused(self) -> tuple[tuple[str, Refused], ...]:
        """What sets each apart from the default, and why vLLM refuses it."""
        return tuple((one.change, one.answer) for one in self.asked if isinstance(one.answer, Refused))

    @property
    def unknown(self) -> tuple[tuple[str, Unknown], ...]:
        return tuple((one.change, one.answer) for one in self.asked if isinstance(one.answer, Unknown))

    @property
    def median_ms(self) -> float | None:
        """A question's time in vLLM; the first, which is slower by far, included."""
        times = [one.answer.took_ms for one in self.asked if isinstance(one.answer, Valid | Refused)]
        return statistics.median(times) if times else None


def validated(problem: Problem, validate: Callable[[EngineConfig], Validity], *, most: int = MOST_ASKED) -> Validation:
    """Asks about the default, the incumbent, and each value of each dimension with the rest at its default. Where the
    default itself isn't accepted nothing else is asked: all others would be refused for the same reason."""
    changes = one_change_each(problem)
    asked: list[Asked] = []
    for change in islice(changes, most):
        answer = validate(change.config)
        asked.append(Asked(change=_named(change), answer=answer))
        if change.name is None and not change.incumbent and not isinstance(answer, Valid):
            why = "the default itself is refused" if isinstance(answer, Refused) else answer.reason
            return Validation(asked=tuple(asked), not_asked=why)
    return Validation(asked=tuple(asked), left_out=sum(1 for _ in changes))


def validation_form(made: Validation) -> dict[str, Any]:
    """Part of the answer of `vtune check --json` (docs/cli.md)."""
    return {
        "asked": len(made.asked),
        "left_out": made.left_out,
        "not_asked": made.not_asked,
        "refused": [
            {"change": change, "class": answer.cause, "evidence": answer.evidence} for change, answer in made.refused
        ],
        "unknown": [{"change": change, "reason": answer.reason} for change, answer in made.unknown],
        "import_s": made.import_s,
        "median_ms": made.median_ms,
    }


def _named(change: Change) -> str:
    if change.incumbent:
        return "incumbent"
    return "default" if change.name is None else f"{change.name}={shown_value(change.name, change.value)}"
