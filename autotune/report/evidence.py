"""Text that came from an engine or a user, made fit to be shown: short, no terminal codes, no secrets."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from autotune.spec.config import FlagValue

LINE_LIMIT = 240
"""Characters of an evidence line that are shown; the whole line is in the trial's log."""

# CSI ("ESC[31m"), OSC ("ESC]0;title BEL") and two-character sequences, ECMA-48 section 5.
_TERMINAL_CODE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])|\x9b[0-?]*[ -/]*[@-~]")
_SECRET_NAME = re.compile(
    r"(?:^|[_.-])(?:(?:SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:$|[_.-])|(?:TOKEN|KEY)$)", re.IGNORECASE
)
_SECRET_TEXT = re.compile(
    r"\b(?:hf|sk|ghp|gho|xoxb)[_-][A-Za-z0-9_-]{8,}"
    r"|\bAKIA[0-9A-Z]{12,}"
    r"|(?<=Bearer )\S+"
    r"|(?<=[a-z0-9]://)[^\s/:@]+:[^\s/@]+(?=@)"
    r"|(?i:(?<=api_key=)|(?<=api-key=)|(?<=api_key: )|(?<=token=)|(?<=password=)|(?<=secret=))"
    r"['\"]?[^\s'\",;&]{4,}['\"]?"
)
REDACTED = "<redacted>"


def one_line(text: str, limit: int = LINE_LIMIT) -> str:
    """`text` without terminal codes, control and direction-changing characters and secrets, on one line of at most
    `limit` characters; what was cut is marked by "…".

    Work is bounded by `limit`, not by the length of `text`: engines do print lines of megabytes.
    """
    text, whole = text[: limit * 20], len(text) <= limit * 20
    text = _SECRET_TEXT.sub(REDACTED, " ".join(harmless(text).split()))
    if len(text) > limit or not whole:
        text = text[: limit - 1].rstrip() + "…"
    return text


def harmless(text: str) -> str:
    """`text` without terminal codes, with every line break and tab as a space; nothing else is changed or left out."""
    text = _TERMINAL_CODE.sub("", text)
    return "".join(" " if c.isspace() else c for c in text if c.isspace() or not _invisible(c))


def is_secret_name(name: str) -> bool:
    """Whether a flag or environment variable of this name usually holds a secret (`HF_TOKEN`, `api-key`)."""
    return _SECRET_NAME.search(name) is not None


def shown_value(name: str, value: FlagValue) -> str:
    """A flag's value as text; a secret's value never."""
    if is_secret_name(name) and value is not None:
        return REDACTED
    match value:
        case None:
            return "vLLM's default"
        case bool():
            return "true" if value else "false"
        case _:
            return one_line(str(value), 120)


def shown_flags(flags: Mapping[str, FlagValue], *, beside: Mapping[str, FlagValue] | None = None) -> str:
    """`a=1, b=true`, in the order of the names. With `beside`, only what differs from it; a flag of `beside` that
    isn't given here reads `a=vLLM's default`."""
    if beside is None:
        names = [name for name, value in flags.items() if value is not None]
    else:
        names = [name for name in flags.keys() | beside.keys() if flags.get(name) != beside.get(name)]
    given = [f"{one_line(name, 80)}={shown_value(name, flags.get(name))}" for name in sorted(names)]
    return ", ".join(given) or ("(vLLM's defaults)" if beside is None else "(as the default)")


def _invisible(character: str) -> bool:
    """Control, format (bidirectional overrides among them), surrogate, private and unassigned characters."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn")
