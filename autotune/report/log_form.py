"""A log's reading as plain data, as `read-log --json` prints it (docs/cli.md). Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autotune.engine.failure_classes import remedy
from autotune.engine.log_reading import LogReading
from autotune.report.evidence import one_line

CAUSE_LIMIT = 1000
"""Characters of a cause that are shown: a configuration's reasons are its point."""


def log_form(reading: LogReading) -> dict[str, Any]:
    """Whole numbers as integers. A good start's `facts` are the log's figures; keys of what isn't known are left out of
    `facts` and `bounds`, elsewhere they are None."""
    failure = reading.failure
    figures: dict[str, Any] = {name: value for name, value in asdict(reading.facts).items() if value is not None}
    if failure is not None:
        figures = {**failure.facts, **{name: list(words) for name, words in failure.words.items()}}
    return {
        "class": None if failure is None else failure.cause,
        "stage": reading.stage,
        "cause_line": None if failure is None else one_line(failure.evidence, CAUSE_LIMIT),
        "facts": {name: _plain(value) for name, value in figures.items()},
        "bounds": [] if failure is None else [bound.form() for bound in failure.bounds],
        "retry": failure is not None and failure.worth_a_retry,
        "remedy": None if failure is None else remedy(failure),
        "capacity": None if reading.capacity is None else asdict(reading.capacity),
        "warnings": [one_line(warning, CAUSE_LIMIT) for warning in reading.warnings],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() else round(value, 6)
    return value
