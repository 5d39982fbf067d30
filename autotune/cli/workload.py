"""`workload show`: what a workload amounts to, before anything is sent."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli.arguments import Json
from autotune.cli.output import answer, say, show, stdout, table

workload = typer.Typer(help="Look at a workload.", no_args_is_help=True, rich_markup_mode=None)


@workload.callback()
def group() -> None:
    """Keeps `show` a word of its own, as typer would fold a single command into its group."""


@workload.command(name="show")
def show_workload(
    given: Annotated[str, typer.Argument(metavar="FILE|NAME", help="A workload file, or a shipped one's name.")],
    block_tokens: Annotated[
        int,
        typer.Option("--block-tokens", min=1, max=4096, help="The engine's block size: prefix hits are whole blocks."),
    ] = 16,
    json: Json = False,
) -> None:
    """Rates, lengths, expected prefix-cache hits, the max-model-len it needs.

    Sends nothing. Warns where prompts defeat prefix caching."""
    from autotune.report.numbers import number
    from autotune.report.workload_facts import workload_facts, workload_form
    from autotune.spec.shipped import resolve_workload
    from autotune.spec.workload_file import load_workload

    file = resolve_workload(given)
    loaded = load_workload(file)
    facts = workload_facts(loaded, block_tokens=block_tokens)
    trace = loaded.trace
    if json:
        source = {"file": trace.file, "format": trace.format, "rows": len(trace.rows)} if trace else None
        answer({"workload": loaded.name, "workload_file": str(file), "trace": source, **workload_form(facts)})
        return
    console = stdout()
    say(
        console,
        f"Workload {loaded.name}" + (f": {len(trace.rows)} rows of {trace.file} ({trace.format})" if trace else ""),
    )
    rows = [
        [
            rung.name,
            rung.arrivals,
            number(rung.requests),
            number(rung.rate_rps),
            number(rung.gap_cv),
            *(number(getattr(rung.prompt_tokens, name)) for name in ("p50", "p90", "p99", "max")),
            *(number(getattr(rung.output_tokens, name)) for name in ("p50", "p90", "p99", "max")),
            f"{100 * rung.prefix_hit_share:.1f} %",
        ]
        for rung in facts.rungs
    ]
    spreads = [f"{what} {name}" for what in ("prompt", "output") for name in ("p50", "p90", "p99", "max")]
    columns = ["rung", "arrivals", "requests", "rate /s", "gap CV", *spreads, "prefix hits"]
    show(console, table("", columns, rows, right=tuple(range(2, len(columns)))))
    about = "" if facts.exact else "about "
    if (search := facts.goodput_search) is not None:
        say(
            console,
            f"Goodput search: the highest rate within the SLOs to {100 * search.precision:g} %, at most "
            f"{search.most_rungs} rungs of {search.requests} requests each",
        )
    say(
        console,
        f"Longest request: {about}{facts.longest_request_tokens:,} tokens, so max-model-len {facts.max_model_len:,}",
    )
    if not facts.exact:
        say(console, "Prompts are texts: their tokens are estimated, and the server counts them.")
    for warning in facts.warnings:
        say(console, f"Warning: {warning}", style="yellow")
