from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli.boundary import Group
from autotune.errors import EnvironmentProblem, NoValidTrial, UserError

app = typer.Typer(cls=Group, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def fail(kind: str, number: int = 0) -> None:
    match kind:
        case "user":
            raise UserError("is wrong", file="a.yaml", key="k", value="[red]\x1b[31mv", remedy="write 1")
        case "nothing":
            raise NoValidTrial("no trial")
        case "machine":
            raise EnvironmentProblem("no GPU")
        case "interrupt":
            raise KeyboardInterrupt
        case "exit":
            raise typer.Exit(7)
        case "bug":
            raise ZeroDivisionError("division by [bold]zero")


@app.command()
def other() -> None:
    print("done")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["other"], 0),
        (["fail", "user"], 2),
        (["fail", "nothing"], 3),
        (["fail", "machine"], 4),
        (["fail", "interrupt"], 130),
        (["fail", "exit"], 7),
        (["fail", "bug"], 1),
        (["fail", "user", "--no-such-option"], 2),
        (["fail", "user", "--number", "x"], 2),
        (["fail"], 2),
        (["no-such-command"], 2),
    ],
)
def test_every_way_out_has_its_exit_code(arguments: list[str], code: int) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == code


@pytest.mark.parametrize("arguments", [["fail", "user"], ["fail", "bug"], ["fail", "machine"], ["no-such-command"]])
def test_a_failure_is_one_line_on_stderr_without_a_traceback(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("vtune: ")
    assert "Traceback" not in result.stderr


def test_what_the_user_gave_is_shown_as_it_is_but_for_terminal_codes() -> None:
    line = CliRunner().invoke(app, ["fail", "user"]).stderr
    assert line == "vtune: a.yaml: k: is wrong (got '[red]\\x1b[31mv'). Write 1\n"


def test_a_bug_says_where_its_traceback_went() -> None:
    line = CliRunner().invoke(app, ["fail", "bug"]).stderr
    kept = re.search(r"the traceback is in (\S+)\)", line)
    assert kept is not None
    file = Path(kept.group(1))
    assert "ZeroDivisionError: division by [bold]zero" in file.read_text()
    file.unlink()


def test_a_misspelt_command_is_told_where_the_help_is() -> None:
    assert CliRunner().invoke(app, ["no-such-command"]).stderr.rstrip().endswith("--help`.")


def test_a_reader_that_leaves_early_is_not_complained_about() -> None:
    program = (
        "from test_boundary import app\nimport typer\n@app.command()\ndef much():\n    print('x\\n' * 100000)\napp()"
    )
    left = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "$PROGRAM" much | head -1'],
        cwd=Path(__file__).parent,
        env={**os.environ, "PROGRAM": program},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (left.stdout, left.stderr) == ("x\n", "")
