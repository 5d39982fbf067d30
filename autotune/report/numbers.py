"""How numbers are written in reports and on the terminal."""

from __future__ import annotations

from autotune.spec.objective import Slo


def number(value: float | None) -> str:
    """Three to four significant digits, thousands separated, no exponent; "-" for None."""
    if value is None:
        return "-"
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.1f}"
    if abs(value) >= 1:
        return f"{value:.2f}"
    return f"{value:.4g}"


def percent(share: float) -> str:
    """A signed change: "+12.3 %", "-1,018 %"."""
    return f"{100 * share:+.1f} %" if abs(share) < 10 else f"{100 * share:+,.0f} %"


def duration(seconds: float | None) -> str:
    """ "42 s", "3 min 5 s", "2 h 10 min"; "-" for None."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 // 60 else "")


def plural(count: int, noun: str) -> str:
    """ "1 trial", "2 trials"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def limit(slo: Slo) -> str:
    """ "ttft_p99_ms <= 2,000"."""
    return f"{slo.metric} {'>=' if slo.at_least else '<='} {number(slo.limit)}"
