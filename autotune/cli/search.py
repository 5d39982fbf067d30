"""`search`: the whole job. Prints what it is about to do, shows what happens, ends with what was found."""

from __future__ import annotations

import logging
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.arguments import Allow, AllowQualityLoss, Json, Model, ModelConfig, SpaceOrNone, VllmPython, Workload
from autotune.cli.boundary import INTERRUPTED, crash_folder
from autotune.cli.output import answer, say, stderr, stdout
from autotune.errors import NoValidTrial, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.cli.prepared import Prepared
    from autotune.run.progress import RunState

log = logging.getLogger(__name__)


class Sampler(StrEnum):
    gp = "gp"
    tpe = "tpe"
    nsga2 = "nsga2"
    random = "random"


def search(
    space: SpaceOrNone = None,
    workload: Workload = None,
    model: Model = None,
    model_config: ModelConfig = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The run's folder. Default: runs/<space>-<time>/."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN", help="Go on with this run; nothing is repeated."),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option("--trials", min=1, help="At most so many trials."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="TIME", help='Wall time, such as "30 min", instead of the space\'s.'),
    ] = None,
    gpu_budget: Annotated[
        str | None,
        typer.Option("--gpu-budget", metavar="TIME", help='GPU time (devices x wall time), such as "2 h".'),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, max=2**32 - 1, help="Instead of the space's."),
    ] = None,
    sampler: Annotated[
        Sampler | None,
        typer.Option(
            "--sampler", help="What suggests the candidates. Default: gp (Gaussian processes).", show_default=False
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, help="At most so many engines at once."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help='Join this Ray cluster ("auto": the one on this host).'),
    ] = None,
    no_confirm: Annotated[
        bool, typer.Option("--no-confirm", help="Don't measure the best candidates and the default again at the end.")
    ] = False,
    no_reuse: Annotated[
        bool, typer.Option("--no-reuse", help="Start an engine for every trial, also where live settings would do.")
    ] = False,
    vllm_python: VllmPython = None,
    allow_quality_loss: AllowQualityLoss = False,
    allow: Allow = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Pretend: simulated engines and load. For trying out, never for a claim.")
    ] = False,
    simulated_gpus: Annotated[
        int, typer.Option("--simulated-gpus", min=1, help="With --simulate: so many GPUs are pretended.")
    ] = 1,
    json: Json = False,
) -> None:
    """Search a space on real engines, and say what was found."""
    from autotune.cli.prepared import overridden, prepare_new, prepare_resumed
    from autotune.run.options import SearchOptions

    log_to_stderr()
    overrides = overridden(model=model, seed=seed, trials=trials, budget=budget, gpu_budget=gpu_budget)
    if resume is not None:
        given = {
            "--space": space,
            "--workload": workload,
            "--model": model,
            "--model-config": model_config,
            "--out": out,
            "--seed": seed,
            "--sampler": sampler,
            "--vllm-python": vllm_python,
            "--allow-quality-loss": allow_quality_loss or None,
            "--allow": allow,
            "--no-confirm": no_confirm or None,
            "--no-reuse": no_reuse or None,
            "--simulate": simulate or None,
        }
        for option, value in given.items():
            if value is not None:
                raise UserError("a resumed run keeps what it began with", key=option, remedy=f"leave {option} out")
        prepared = prepare_resumed(resume, overrides=overrides, address=address)
    elif space is None:
        raise UserError(
            "nothing to search", remedy="give --space FILE or NAME (`vtune spaces` lists the shipped ones), or --resume"
        )
    else:
        options = SearchOptions(
            vllm_python=vllm_python,
            sampler=sampler.value if sampler else "gp",
            address=address,
            concurrency=concurrency,
            confirm=not no_confirm,
            reuse=not no_reuse,
            allow_quality_loss=allow_quality_loss,
            simulate=simulate,
            simulated_gpus=simulated_gpus,
        )
        prepared = prepare_new(
            space,
            workload=workload,
            out=out,
            options=options,
            overrides=overrides,
            allow=allow or (),
            model_config=model_config,
        )
    _search(prepared, json=json)


def _search(prepared: Prepared, *, json: bool) -> None:
    from autotune.cli.plan_text import show_plan
    from autotune.cli.results import show_results
    from autotune.report.estimate import estimate_form
    from autotune.report.form import study_form
    from autotune.report.study import read_study

    console = stderr() if json else stdout()
    show_plan(console, prepared.plan)
    say(console)
    say(console, f"Run: {prepared.run.path}")
    crash_folder(prepared.run.path)
    problem = None
    try:
        state = _watched(prepared, console)
    except NoValidTrial as error:
        state, problem = "failed", error
    except KeyboardInterrupt:
        state = "interrupted"
    study = read_study(prepared.run.path)
    if json:
        answer({**study_form(study), "estimate": estimate_form(prepared.plan.estimate)})
    else:
        say(console)
        show_results(console, study)
    if problem is not None:
        raise problem
    if state == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _watched(prepared: Prepared, console: Console) -> RunState:
    from autotune.cli.live import watching
    from autotune.run.search import run_search

    problem = prepared.problem
    with watching(console, name=problem.space.name, objectives=problem.objectives, slos=problem.slos) as watch:
        return run_search(
            problem,
            prepared.options,
            run=prepared.run,
            catalogue=prepared.catalogue,
            watch=watch,
            memory=prepared.plan.memory,
        )


class _Stderr(logging.Handler):
    """Looks the stream up at each line: the live view replaces it while it is up."""

    def emit(self, record: logging.LogRecord) -> None:
        say(stderr(), f"vtune: {record.getMessage()}")


def log_to_stderr() -> None:
    logger = logging.getLogger("autotune")
    if not logger.handlers:
        logger.addHandler(_Stderr())
        logger.setLevel(logging.INFO)
        logging.getLogger("autotune.spec").setLevel(logging.ERROR)  # its notices are part of the plan that is shown
