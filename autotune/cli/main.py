"""`vtune`: arguments in, text out. Each command lives with its group; what it decides lives in `report` and `spec`."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune import __version__
from autotune.cli.boundary import Group
from autotune.cli.check import check
from autotune.cli.flags import flags
from autotune.cli.read_log import read_log
from autotune.cli.runs import best, report, status
from autotune.cli.search import search
from autotune.cli.shipped import init, spaces, workloads
from autotune.cli.workload import workload

app = typer.Typer(
    cls=Group,
    name="vtune",
    help="Finds the vLLM engine flags that serve your workload best, by experiment.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (init, spaces, workloads, flags, check, search, status, report, best, read_log):
    app.command()(command)
app.add_typer(workload, name="workload")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"vtune {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Exits with 0 (done), 2 (user input), 3 (no valid trial), 4 (environment), 130 (interrupted) or 1 (a bug)."""
    app(prog_name="vtune")


if __name__ == "__main__":
    main()
