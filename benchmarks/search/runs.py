"""What a method did on a problem: its trials in the order in which they ended, and what it said was best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A trial. `pruned`: stopped before its end; `dead`: its engine never served, or died."""

    key: str
    began_s: float
    ended_s: float
    gpus: int
    kind: Literal["measured", "pruned", "dead"]
    role: str = "search"

    @property
    def gpu_s(self) -> float:
        return self.gpus * (self.ended_s - self.began_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`said`: the configuration that it ends up recommending; None = none. `took_s`: from its first start to its end,
    during which it holds the whole machine."""

    events: tuple[Event, ...]
    took_s: float
    said: str | None
