"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of text (keys: docs/cli.md).")]
Run = Annotated[
    Path | None,
    typer.Argument(metavar="[RUN]", help="The run's folder. Default: the newest under runs/.", show_default=False),
]
Space = Annotated[str, typer.Option("--space", metavar="FILE|NAME", help="A space file, or a shipped space's name.")]
SpaceOrNone = Annotated[
    str | None,
    typer.Option("--space", metavar="FILE|NAME", help="A space file, or a shipped space's name.", show_default=False),
]
Workload = Annotated[
    str | None,
    typer.Option("--workload", metavar="FILE|NAME", help="Instead of the workload that the space names."),
]
VllmPython = Annotated[
    Path | None,
    typer.Option("--vllm-python", metavar="PATH", help="The interpreter with the vLLM to tune. Default: this one."),
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME|PATH", help="Instead of the model that the space names."),
]
ModelConfig = Annotated[
    Path | None,
    typer.Option("--model-config", metavar="PATH", help="The model's config.json, where the model isn't at hand."),
]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="FLAG", help="Search this one although it may change answers. Repeatable."),
]
AllowQualityLoss = Annotated[
    bool,
    typer.Option("--allow-quality-loss", help="Search flags that may change answers too (quantization, ...)."),
]
