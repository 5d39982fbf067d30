"""docs/parquet.md says what the schemas say, column by column."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from autotune.history.schema import ENVIRONMENT_COLUMNS, REQUEST_COLUMNS, RUNG_COLUMNS, TRIAL_COLUMNS, Column
from autotune.history.tables import MEASURED_FIELDS
from autotune.spec.measurement import METRICS

PAGE = (Path(__file__).parents[2] / "docs" / "parquet.md").read_text()


def documented(section: str) -> list[str]:
    body = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `.*$", body, flags=re.MULTILINE)


def rows(columns: Iterable[Column]) -> list[str]:
    return [f"| `{c.name}` | {c.type} | {c.unit} | {c.meaning} |" for c in columns]


@pytest.mark.parametrize(("section", "columns"), [("requests", REQUEST_COLUMNS), ("environment", ENVIRONMENT_COLUMNS)])
def test_a_table_is_documented_as_it_is_declared(section: str, columns: tuple[Column, ...]) -> None:
    assert documented(section) == rows(columns)


@pytest.mark.parametrize(("section", "columns"), [("trials", TRIAL_COLUMNS), ("rungs", RUNG_COLUMNS)])
def test_a_table_with_measured_columns_documents_its_own_and_then_those(
    section: str, columns: tuple[Column, ...]
) -> None:
    ends = {f"{metric}{end}" for metric in METRICS for end in ("_low", "_high")}
    own = [c for c in columns if c.name not in MEASURED_FIELDS and c.name not in ends]
    measured = [c for c in columns if c.name in MEASURED_FIELDS]
    assert documented(section) == rows(own)
    assert documented("Measured columns") == rows(measured)


def test_every_metric_has_a_meaning_of_its_own() -> None:
    meanings = {c.name: c.meaning for c in TRIAL_COLUMNS if c.name in METRICS}
    assert set(meanings) == set(METRICS)
    assert len(set(meanings.values())) == len(METRICS)
    assert all(meaning != name.replace("_", " ") for name, meaning in meanings.items())
