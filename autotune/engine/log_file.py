"""A log file that a user named, read with care: it may be huge, empty, or no log at all."""

from __future__ import annotations

from pathlib import Path

from autotune.engine.log_lines import split_logs
from autotune.errors import UserError

_KEPT_BYTES = 4 * 2**20
_NAME_A_LOG = "name the file that holds what `vllm serve` printed"


def read_logs(file: Path) -> list[str]:
    """The logs in a file, at least one; of a very long file, its beginning and its end. Raises UserError."""
    try:
        with file.open("rb") as opened:
            data = opened.read(_KEPT_BYTES)
            tail = b""
            while more := opened.read(_KEPT_BYTES):
                tail = (tail + more)[-_KEPT_BYTES:]
    except FileNotFoundError:
        raise UserError("there is no such file", file=file, remedy=_NAME_A_LOG) from None
    except IsADirectoryError:
        raise UserError("this is a folder", file=file, remedy=_NAME_A_LOG) from None
    except OSError as error:
        raise UserError(f"can't be read: {error.strerror}", file=file, remedy=_NAME_A_LOG) from None
    if b"\0" in data or data.startswith(b"\x1f\x8b"):
        raise UserError("this is no text", file=file, remedy=f"{_NAME_A_LOG}, unpacked")
    text = (data + b"\n[...]\n" * bool(tail) + tail).decode("utf-8", "replace")
    logs = split_logs(text)
    if not logs:
        raise UserError("the file is empty: there is nothing to read", file=file, remedy=_NAME_A_LOG)
    return logs
