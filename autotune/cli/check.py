"""`check`: what a search would do, and whether it could. Starts no engine."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.arguments import Allow, AllowQualityLoss, Json, Model, ModelConfig, Space, VllmPython, Workload
from autotune.cli.output import answer, stdout


def check(
    space: Space,
    workload: Workload = None,
    model: Model = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="NAME|GIB", help="As if on this GPU, such as H200 or 80."),
    ] = None,
    model_config: ModelConfig = None,
    vllm_python: VllmPython = None,
    allow_quality_loss: AllowQualityLoss = False,
    allow: Allow = None,
    ask_vllm: Annotated[
        bool,
        typer.Option("--ask-vllm/--no-ask-vllm", help="Let vLLM itself validate points of the space (10 to 20 s)."),
    ] = True,
    json: Json = False,
) -> None:
    """Validate a space; say what a search would do and cost.

    Starts no engine and needs no GPU."""
    from autotune.cli.plan_text import show_plan
    from autotune.cli.prepared import checked
    from autotune.report.plan import plan_form

    made = checked(
        space,
        workload=workload,
        model=model,
        gpu=gpu,
        model_config=model_config,
        vllm_python=vllm_python,
        allow_quality_loss=allow_quality_loss,
        allow=allow or (),
        ask_vllm=ask_vllm,
    )
    if json:
        answer(plan_form(made))
    else:
        show_plan(stdout(), made)
