"""How a search is run, as opposed to what it searches (`spec.problem`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """`vllm_python` None = the interpreter vtune runs in. `address` joins a running Ray cluster, None starts one.

    `concurrency` caps trials at once (None = as many as the GPUs allow; CPU engines one at a time). `simulate` replaces
    the engine and its load by the simulated pair: for dry runs and search experiments, never for a claim;
    `simulated_gpus` are then pretended, and one simulated second takes `time_scale` real ones.
    """

    vllm_python: Path | None = None
    platform: str = "cuda"
    sampler: Literal["gp", "tpe", "nsga2", "random"] = "gp"
    address: str | None = None
    concurrency: int | None = None
    allow_quality_loss: bool = False
    max_attempts: int = 3
    confirm: bool = True
    """Whether the search ends by measuring its finalists and the baseline again."""
    reuse: bool = True
    """Whether an engine serves several trials where only its live settings differ."""
    fork: bool = True
    """Whether engines are forked from a process that has imported vLLM, where that works; those of a confirmation on
    GPUs never are."""
    simulate: bool = False
    simulated_gpus: int = 1
    time_scale: float = 0.0

    def to_json(self) -> dict[str, object]:
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> SearchOptions:
        """The inverse of `to_json`; keys of other versions are ignored."""
        known = {name: values[name] for name in cls.__slots__ if name in values}
        path = known.get("vllm_python")
        return cls(**{**known, "vllm_python": Path(str(path)) if path else None})  # type: ignore[arg-type]  # JSON
