"""What is wanted: objectives to improve, limits (SLOs) to keep, and how much may be spent finding out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from autotune.spec.measurement import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A metric (column name, unit included) and which way is better."""

    metric: str
    direction: Literal["maximize", "minimize"]

    @property
    def sign(self) -> int:
        """What a value is multiplied by so that smaller is better."""
        return -1 if self.direction == "maximize" else 1

    def loss(self, measurement: Measurement) -> float | None:
        """The value turned so that smaller is better; None when it wasn't measured."""
        value = measurement.value(self.metric)
        return None if value is None else self.sign * value

    def gain(self, new: float, old: float) -> float:
        """Relative improvement of `new` over `old`; positive is better in either direction."""
        return (new / old - 1.0) if self.direction == "maximize" else (1.0 - new / old)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """An upper limit on a metric, or a lower one where `at_least` (throughput-like metrics)."""

    metric: str
    limit: float
    at_least: bool = False

    def violation(self, measurement: Measurement) -> float | None:
        """Relative excess over the limit; <= 0 is met, as Optuna's constraints have it. None = not measured."""
        value = measurement.value(self.metric)
        if value is None:
            return None
        return 1.0 - value / self.limit if self.at_least else value / self.limit - 1.0

    def keeps(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


def meets(slos: Sequence[Slo], measurement: Measurement) -> bool:
    """Every limit measured and kept, and no request lost."""
    violations = [slo.violation(measurement) for slo in slos]
    return measurement.failed == 0 and all(v is not None and v <= 0 for v in violations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The search stops at whichever comes first; None = no limit of that kind."""

    gpu_s: float | None = None
    wall_s: float | None = 3600.0
    trials: int | None = None
