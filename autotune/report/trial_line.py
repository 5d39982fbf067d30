"""One trial on one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from autotune.history.record import TrialRecord
from autotune.report.cautions import cautions
from autotune.report.evidence import one_line, shown_flags
from autotune.report.numbers import number
from autotune.spec.measurement import Measurement
from autotune.spec.objective import Objective
from autotune.spec.verdict import Broken, Dominated, Infeasible, Invalid, Measured


def trial_line(record: TrialRecord, objectives: Sequence[Objective]) -> str:
    """What it showed (or why it didn't) and what was tried: "2,177 output_tok_per_s_per_gpu, ...; max-num-seqs=64"."""
    match record.verdict:
        case Measured(measurement=measurement) | Dominated(measurement=measurement):
            what = "; ".join((_values(measurement, objectives), *cautions(record)))
        case Infeasible(cause=cause, evidence=evidence):
            what = f"{one_line(cause, 60)}: {one_line(evidence, 160)}"
        case Invalid(reasons=reasons):
            what = one_line("; ".join(reasons), 200)
        case Broken(cause=cause, error=error):
            what = f"{one_line(cause, 60)}: {one_line(error, 160)}"
        case _:
            assert_never(record.verdict)
    match record.role:
        case "default" | "incumbent" | "baseline":
            return f"{what}; the {record.role}"
        case "screen" | "confirm":
            return f"{what}; {record.role}: {shown_flags(record.config.flags)}"
        case "search":
            return f"{what}; {shown_flags(record.point)}"
        case _:
            assert_never(record.role)


def _values(measurement: Measurement, objectives: Sequence[Objective]) -> str:
    return ", ".join(f"{o.metric} {number(measurement.value(o.metric))}" for o in objectives)
