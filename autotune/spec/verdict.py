"""What a trial ended as. Each kind is told to the study in its own way (`search.study`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from autotune.spec.measurement import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Every rung was run and is valid. `measurement` is that of the last reference rung."""

    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a failure says about one flag, on the same model, GPU and vLLM, the other flags being as they were.

    None = it doesn't say. `raise_by_gib`: by so much of the device's memory; `divides`: the value must divide it;
    `unknown`: this vLLM has no such flag; `when`: only under this condition, in words.
    """

    flag: str
    at_most: float | None = None
    below: float | None = None
    at_least: float | None = None
    above: float | None = None
    raise_by_gib: float | None = None
    one_of: tuple[str, ...] | None = None
    none_of: tuple[str, ...] | None = None
    divides: float | None = None
    unknown: bool | None = None
    when: str | None = None

    def form(self) -> dict[str, Any]:
        """As JSON has it: only what it says, whole numbers as integers. `Bound.read` is its inverse."""
        return {name: _plain(value) for name, value in asdict(self).items() if value is not None}

    @classmethod
    def read(cls, form: Mapping[str, Any]) -> Bound:
        given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in form.items()}
        return cls(**given)


def _plain(value: object) -> object:
    match value:
        case tuple():
            return list(value)
        case float() if value.is_integer():
            return int(value)
        case _:
            return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """The engine can't run with these flags. `shortfall`: missing GiB / device GiB in [0, 1]; 0 when unknown.
    `measurement`: of the last reference rung, where the engine died only after it, under stress."""

    cause: str
    evidence: str
    shortfall: float = 0.0
    measurement: Measurement | None = None
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dominated:
    """Stopped: even an optimistic reading of it is no better than trials `by` in any objective."""

    by: tuple[int, ...]
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalid:
    """The engine ran but the measurement can't be used. No evidence about the configuration."""

    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The harness or the machine failed. No evidence about the configuration."""

    error: str
    cause: str = "harness"


Verdict = Measured | Infeasible | Dominated | Invalid | Broken


def verdict_name(verdict: Verdict) -> str:
    """As `trials.parquet` has it: measured, infeasible, dominated, invalid, broken."""
    return type(verdict).__name__.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFailure:
    """Why an engine didn't start or died, read from its log.

    `cause` is one of the classes in docs/failures.md (`capacity.kv_too_small`, `infra.gpu_busy`, ...). Causes that
    begin with `infra.` say nothing about the configuration and are retried.
    """

    stage: str
    cause: str
    evidence: str
    exit_code: int | None = None
    shortfall: float = 0.0
    after_s: float = 0.0
    """Seconds from the start of the process to its failure."""
    facts: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the message named: flags, values, backends."""
    bounds: tuple[Bound, ...] = ()

    @property
    def blames_configuration(self) -> bool:
        return not self.cause.startswith(("infra.", "env."))

    @property
    def worth_a_retry(self) -> bool:
        """Whether the same configuration may well start the next time, with nothing changed."""
        return self.cause.startswith("infra.") and self.cause != "infra.cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Where a trial's wall seconds went; times the trial's GPUs they are its GPU-seconds."""

    start_s: float = 0.0
    warm_up_s: float = 0.0
    load_s: float = 0.0
    stop_s: float = 0.0
    dead_s: float = 0.0
    """Spent on an engine that never served (a failed start, a wait for a busy GPU)."""

    def __add__(self, other: Books) -> Books:
        return Books(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @property
    def total_s(self) -> float:
        return self.start_s + self.warm_up_s + self.load_s + self.stop_s + self.dead_s
