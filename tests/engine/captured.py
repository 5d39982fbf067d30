"""Captured logs and metrics of real engines (tests/fixtures/logs/README.md)."""

from __future__ import annotations

import gzip
from pathlib import Path

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"


def log(name: str) -> str:
    """`name` without .log or .log.gz; public reports are `reports/NAME`."""
    packed = LOGS / f"{name}.log.gz"
    if packed.exists():
        return gzip.decompress(packed.read_bytes()).decode()
    return (LOGS / f"{name}.log").read_text()


def metrics(name: str) -> str:
    return gzip.decompress((LOGS / f"{name}.metrics.gz").read_bytes()).decode()
