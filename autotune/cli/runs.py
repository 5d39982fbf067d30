"""`status`, `report`, `best`: what a run shows. They read its folder only, also while it is being written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.arguments import Json, Run
from autotune.cli.output import answer, say, stdout


def status(run: Run = None, json: Json = False) -> None:
    """How far a run has come, and what it has found."""
    from autotune.cli.results import show_results
    from autotune.report.form import study_form
    from autotune.report.study import newest_run, read_study

    study = read_study(run or newest_run())
    if json:
        answer(study_form(study))
        return
    show_results(stdout(), study)


def report(
    run: Run = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout."),
    ] = None,
    json: Json = False,
) -> None:
    """The report of a run, as Markdown."""
    from autotune.errors import UserError
    from autotune.report.form import study_form
    from autotune.report.markdown import markdown
    from autotune.report.study import newest_run, read_study

    study = read_study(run or newest_run())
    text = markdown(study)
    if output is not None:
        try:
            output.write_text(text)
        except OSError as error:
            raise UserError(
                f"can't be written: {error.strerror}", file=output, remedy="name a file in a folder that exists"
            ) from None
    if json:
        answer({**study_form(study), "markdown": text, "file": str(output) if output else None})
    elif output is None:
        typer.echo(text, nl=False)
    else:
        say(stdout(), f"Wrote {output}")


def best(
    run: Run = None,
    slo: Annotated[
        list[str] | None,
        typer.Option("--slo", metavar='"METRIC: LIMIT"', help='Instead of the run\'s limits, e.g. "ttft_p99: 500 ms".'),
    ] = None,
    json: Json = False,
) -> None:
    """The command that serves a run's best configuration."""
    from autotune.errors import NoValidTrial
    from autotune.report.form import slo_form, tried_form
    from autotune.report.limits import limits
    from autotune.report.outcome import sentence
    from autotune.report.stress import stress_form
    from autotune.report.study import newest_run, read_study

    study = read_study(run or newest_run(), slos=limits(slo) if slo else None)
    found = study.summary.best
    if found is None:
        raise NoValidTrial(f"{study.path}: {sentence(study.summary)}")
    if json:
        answer(
            {
                "run": str(study.path),
                "verdict": sentence(study.summary),
                "slos": [slo_form(limit) for limit in study.summary.slos],
                "best": tried_form(found, study),
                "stress": stress_form(study.summary.stress_of(found)),
                "argv": list(study.command(found).argv),
                "env": dict(study.command(found).env),
            }
        )
        return
    typer.echo(study.command(found).shell())
    typer.echo(f"# {sentence(study.summary)}", err=True)
