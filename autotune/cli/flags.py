"""`flags`: what the vLLM that would be tuned can be told."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from autotune.cli.arguments import Json, VllmPython
from autotune.cli.output import answer, say, show, stdout, table


def flags(
    filter: Annotated[  # the name users see
        str | None,
        typer.Argument(metavar="[FILTER]", help="Part of a flag's name, group or help.", show_default=False),
    ] = None,
    vllm_python: VllmPython = None,
    json: Json = False,
) -> None:
    """The flags of the installed vLLM, with type, choices, default.

    Keys of JSON flags are spelled with a dot."""
    from autotune.engine.catalogue import read_catalogue
    from autotune.errors import UserError
    from autotune.report.flag_list import flag_form, listed, shown_default, shown_type
    from autotune.spec.catalogue import nearest

    catalogue = read_catalogue(vllm_python)
    found = listed(catalogue, filter)
    if not found:
        near = nearest(filter or "", list(catalogue.flags))
        remedy = f"did you mean {near}?" if near else "`vtune flags` without a filter lists them all"
        raise UserError(f"no flag of vLLM {catalogue.vllm_version} matches", key="FILTER", value=filter, remedy=remedy)
    if json:
        content: dict[str, Any] = {
            "vllm_version": catalogue.vllm_version,
            "platform": catalogue.platform,
            "python": catalogue.python,
            "flags": [flag_form(name, flag) for name, flag in found],
        }
        answer(content)
        return
    rows = [[name, shown_type(flag), shown_default(flag), flag.help] for name, flag in found]
    console = stdout()
    title = f"vLLM {catalogue.vllm_version} ({catalogue.platform}), {catalogue.python}"
    show(console, table(title, ["flag", "type", "default", "help"], rows, cell_limit=160))
    say(console, f"{len(found)} flags. Whole help texts: --json, or https://docs.vllm.ai/")
