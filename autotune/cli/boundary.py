"""The edge of the program: every way out of a command becomes one message and an exit code (docs/cli.md)."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from autotune.errors import VtuneError
from autotune.report.evidence import one_line

INTERRUPTED = 130
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Click's, wherever it comes from: typer carries its own click since 0.26."""
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]

_crash_folder: Path | None = None


def crash_folder(folder: Path) -> None:
    """Where the traceback of an unexpected exception goes from now on: the run's folder once there is one."""
    global _crash_folder
    _crash_folder = folder


class Group(TyperGroup):
    """Ends the process with an exit code, never with a traceback."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            extra["standalone_mode"] = False
            given = super().main(*args, **extra)
            code = given if isinstance(given, int) else 0
            sys.stdout.flush()
        except VtuneError as error:
            code = error.exit_code
            say_error(str(error))
        except _ClickException as error:
            code = 2
            say_usage(error)
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
            say_error("interrupted")
        except BrokenPipeError:  # the reader (head, less) has left: nothing more to say, and no complaint at exit
            code = 1  # as typer has it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Exception as error:
            code = 1
            say_error(f"{type(error).__name__}: {error} (a bug in vtune: the traceback is in {_keep(error)})")
        sys.exit(code)


def say_error(message: str) -> None:
    """One line on stderr, cleaned: it may quote what an engine or a file said."""
    print(f"vtune: {one_line(message, 2000)}", file=sys.stderr)


def say_usage(error: Exception) -> None:
    message = getattr(error, "format_message", lambda: str(error))()
    context = getattr(error, "ctx", None)
    if not message:  # typer's "no arguments given": it has printed the help already
        return
    path = context.command_path if context is not None else "vtune"
    say_error(f"{message} See `{path} --help`.")


def _keep(error: Exception) -> Path | str:
    text = "".join(traceback.format_exception(error))
    name = f"vtune-crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for folder in (_crash_folder, Path(tempfile.gettempdir())):
        if folder is None:
            continue
        try:
            (folder / name).write_text(text)
        except OSError:
            continue
        return folder / name
    return "no file: none could be written"
