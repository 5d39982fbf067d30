"""What a run's nodes were made of, as each of them said when the run began."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from autotune.errors import UserError
from autotune.history.parts import parts
from autotune.history.rundir import RunDir
from autotune.history.schema import ENVIRONMENT

SHOWN = ("hostname", "gpus", "gpu_gib", "driver", "cpu_model", "cores", "ram_gib", "kernel", "vllm_python")
"""Facts of a node that a report shows, besides its versions."""


def read_environment(run: RunDir) -> dict[str, dict[str, str]]:
    """node -> fact -> text, the latest reading of each; facts that are empty are left out.

    Raises UserError when the table can't be read.
    """
    found: dict[str, dict[str, str]] = {}
    files = parts(run.table("environment"))
    try:
        rows = pq.read_table(files, schema=ENVIRONMENT).to_pylist() if files else []
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(
            f"can't be read: {error}", file=run.table("environment"), remedy="move the damaged file away"
        ) from error
    for row in rows:
        value = json.loads(row["value"])
        if value not in ("", None):
            found.setdefault(row["node"], {})[row["key"]] = str(value)
    return found


def shown_facts(nodes: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """What a reader needs, each fact with the values that the nodes have; versions without their prefix."""
    facts: dict[str, list[str]] = {}
    for node in nodes.values():
        for name, value in node.items():
            if name in SHOWN or name.startswith("version."):
                values = facts.setdefault(name.removeprefix("version."), [])
                if value not in values:
                    values.append(value)
    return {name: "; ".join(values) for name, values in facts.items()}
