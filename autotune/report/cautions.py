"""What to bear in mind about one trial's engine, whatever it measured."""

from __future__ import annotations

from autotune.history.record import TrialRecord
from autotune.spec.graph_grid import off_grid

_CPU = "cpu"


def cautions(record: TrialRecord) -> tuple[str, ...]:
    """Sentences without their full stop. A simulated engine has no log and no graphs, so nothing is said of it."""
    version = record.facts.vllm_version
    found = list(off_grid(record.config.flags, vllm_version=version)) if version and _CPU not in record.devices else []
    if (size := record.facts.graphs_truncated_to) is not None:
        found.append(f"vLLM truncated max-cudagraph-capture-size to {size}: larger batches run without their graph")
    if record.measurement is not None and (share := record.measurement.degenerate_share):
        found.append(f"{100 * share:.0f} % of its answers were empty or one token over and over")
    return tuple(found)
