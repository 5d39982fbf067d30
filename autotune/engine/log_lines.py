"""The lines of a log as they were before a terminal or a mailer wrapped them, and what their prefixes say. Pure.

Whoever reads a log later may have it with any prefix (time, `(EngineCore pid=1)`, `[rank0]:`, level, `[file.py:12]`),
in colour, or folded at some width: a rule that looks for a phrase must not miss it for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_COMMON_WIDTH = 80
_WIDEST = 200
"""Real vLLM logs have far longer lines (the configuration is one), so a log without any was folded."""
_LONGEST = 8_000
_LONGEST_MESSAGE = 4_000
"""Characters of a line, and of what it says, that are looked at: engines do print lines of megabytes, and the time
that a rule takes grows faster than the line."""

_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_DAY = r"(?:\d{4}[-/])?\d\d[-/]\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_LEVEL_NAMES = r"(?:ERROR|CRITICAL|FATAL|WARNING|WARN|INFO|DEBUG)"
_PREFIX = (
    r"(?:"
    r"\d+\.\d\d(?= )(?! *(?:[KMG]i?B\b|s\b|%))|"  # seconds since the start
    rf"\[?(?:{_DAY}[T ])?{_CLOCK}\]?(?= |$)|"
    r"\((?:[A-Z]\w*|raylet|pid|ip|rank)\b[^()]*\)|"  # (EngineCore_DP0 pid=1), (raylet), (Ray pid=1, ip=...)
    rf"\[?{_LEVEL_NAMES}\b(?: +{_DAY} {_CLOCK})?\]?:?(?= |$)|"
    r"\[(?:[\w./-]+\.(?:py|cc|cpp)(?::\d+)?|rank ?\d+)\]:?|"
    r"\[?[EF]\d{4} [\d:.]+ [^\]]*\]|"  # glog
    r"\w[\w.-]*-\d+ +\|"  # docker compose
    r")"
)
_PREFIXES = re.compile(rf"^\s*(?:{_PREFIX}\s*)+")
_STARTS = re.compile(
    rf"\s*(?:{_PREFIX}|Traceback|File \"|[\w.]+(?:Error|Exception|Exit|Interrupt)\b: |"
    r"Value error, |Input should be |Loading |Capturing |usage: |During handling|The above exception|---|\[?[IW]\d{4} )"
)
_STATES_ERROR = re.compile(r"[Ee]rror(?:[:,] |:$)")
_QUOTABLE = re.compile(r"[\w.]+(?:Error|Exception): ")
_LEVEL = re.compile(
    rf"\b({_LEVEL_NAMES})\b(?=:?\s|\s*\[|\])|(Warning): |^\W{{0,2}}([IW])\d{{4}} \d\d:|Error: |Exception: "
)
_QUIET_LEVELS = {"WARNING", "WARN", "INFO", "DEBUG", "Warning", "I", "W"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """`readings`: the line, or several ways to put a folded one together where it can't be told which is right."""

    readings: tuple[str, ...]

    @property
    def harmless(self) -> bool:
        """Whether its level is below error, whatever it says."""
        level = _LEVEL.search(self.readings[0][:120])
        return level is not None and bool({*level.groups()} & _QUIET_LEVELS)

    @property
    def messages(self) -> tuple[str, ...]:
        """The readings without prefixes and with single spaces."""
        return tuple(dict.fromkeys(message(reading) for reading in self.readings))


def message(line: str) -> str:
    return " ".join(_PREFIXES.sub("", line).split())[:_LONGEST_MESSAGE]


def split_logs(text: str) -> list[str]:
    """A line `---` separates logs. Parts without any text aren't logs."""
    return [part for part in re.split(r"(?m)^---[ \t]*\r?$", text) if part.strip()]


def log_lines(text: str) -> Iterator[LogLine]:
    """Progress bars end their states with a carriage return: each state is a line."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    lines = [line[:_LONGEST] for line in text.replace("\r", "\n").split("\n") if line]
    longest = max(map(len, lines), default=0)
    widths = {_COMMON_WIDTH, longest} if longest <= _WIDEST else {_COMMON_WIDTH}
    at = 0
    while at < len(lines):
        parts = [lines[at]]
        width = 0
        while at + len(parts) < len(lines) and sum(map(len, parts)) < _LONGEST:
            following = lines[at + len(parts)]
            folded_at = next((w for w in widths if _folded(parts, following, w)), 0)
            if not folded_at:
                break
            width = folded_at
            parts.append(following)
        at += len(parts)
        yield LogLine(readings=_readings(parts, width))


def unfolded(text: str) -> str:
    """The text without colours, with folded lines put together; every reading of them is there."""
    return "\n".join(reading for line in log_lines(text) for reading in line.readings)


def _folded(parts: list[str], following: str, width: int) -> bool:
    """Whether `following` goes on where the last part met the `width`: its first word wouldn't have fitted."""
    line = parts[-1]
    if not width // 2 <= len(line) <= width:
        return False
    if following[:2].isspace() and not _STATES_ERROR.search(parts[0]):
        return False  # code in a traceback; what goes on with a message may have been indented
    if _STARTS.match(following):
        # A warning may quote an error, and be folded right there.
        return len(line) == width and bool(_QUOTABLE.match(following)) and LogLine(readings=(parts[0],)).harmless
    words = following.split(maxsplit=1)
    return bool(words) and len(line) + 1 + len(words[0]) > width


def _readings(parts: list[str], width: int) -> tuple[str, ...]:
    """Folded between words a space is missing, folded at the width nothing is: a full line may be either."""
    words, letters = parts[0].rstrip(), parts[0]
    for before, part in pairwise(parts):
        words += ("" if re.search(r"\w-$", before) and re.match(r"\w", part) else " ") + part.strip()
        letters += ("" if len(before) == width else " ") + part
    return tuple(dict.fromkeys((letters, words)))
