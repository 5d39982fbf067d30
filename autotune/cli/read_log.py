"""`read-log`: what a vLLM log says, in the words of those who tune by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from autotune.cli.arguments import Json
from autotune.cli.output import answer, say, stdout

if TYPE_CHECKING:
    from autotune.engine.log_reading import LogReading


def read_log(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A log of `vllm serve`; a line `---` separates several.")
    ],
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="NAME|GIB", help="The engine's GPU, where the log doesn't say its memory."),
    ] = None,
    json: Json = False,
) -> None:
    """Why a vLLM didn't start, or what a good start says about its memory.

    Exits with 0 whatever the log says."""
    from autotune.cli.prepared import given_gpu_gib
    from autotune.engine.log_file import read_logs
    from autotune.engine.log_reading import read_log as read
    from autotune.report.log_form import log_form

    device_gib = None if gpu is None else given_gpu_gib(gpu)
    readings = [read(log, device_gib=device_gib) for log in read_logs(file)]
    if json:
        forms = [log_form(reading) for reading in readings]
        answer({**forms[0], "logs": forms})
        return
    console = stdout()
    for number, reading in enumerate(readings, 1):
        if len(readings) > 1:
            say(console, f"Log {number} of {len(readings)}", style="bold")
        _show(console, reading)


def _show(console: Console, reading: LogReading) -> None:
    from autotune.engine.failure_classes import remedy
    from autotune.report.evidence import one_line
    from autotune.report.log_form import CAUSE_LIMIT

    failure = reading.failure
    if failure is not None:
        say(console, f"{failure.cause}, in stage {failure.stage}", style="bold red")
        say(console, f"Cause   {one_line(failure.evidence, CAUSE_LIMIT)}")
        say(console, f"Remedy  {remedy(failure)}")
        say(console, f"Retry   {'yes: it says nothing about the flags' if failure.worth_a_retry else 'no'}")
    elif reading.stage == "ready":
        say(console, "It started; no failure in it.", style="bold green")
    else:
        say(console, f"No failure in it; it ends in stage {reading.stage}.", style="bold")
    _show_capacity(console, reading)
    for warning in reading.warnings:
        say(console, f"Note    {one_line(warning, CAUSE_LIMIT)}")


def _show_capacity(console: Console, reading: LogReading) -> None:
    capacity = reading.capacity
    if capacity is None:
        return
    parts = [
        f"{name} {gib:.2f} GiB" + (f" ({share:.1%})" if share is not None else "")
        for name, gib, share in (
            ("weights", capacity.weights_gib, capacity.weights_share),
            ("KV cache", capacity.kv_cache_gib, capacity.kv_share),
            ("graphs", capacity.graphs_gib, capacity.graphs_share),
        )
        if gib is not None
    ]
    say(console, f"Memory  {', '.join(parts)} of {capacity.total_gib:.1f} GiB ({capacity.total_is})")
    say(console, f"        KV cache: {capacity.band}: {capacity.advice}")
    if capacity.max_concurrency is not None and capacity.max_model_len is not None:
        tokens = "" if capacity.kv_cache_tokens is None else f", {capacity.kv_cache_tokens:,} tokens in all"
        requests = f"{capacity.max_concurrency:g} requests of {capacity.max_model_len:,} tokens"
        say(console, f"        room for {requests} at once{tokens}")
