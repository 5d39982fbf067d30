"""Engine starts whose memory was logged: the captured logs of tests/fixtures, and the trials of searches on a GPU."""

from __future__ import annotations

import ast
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.engine.start_log import read_facts
from autotune.history.reading import read_trials
from autotune.history.rundir import RunDir
from autotune.spec.capacity import gpu_gib
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.measurement import StartFacts
from autotune.spec.model import ModelShape, parse_model_shape

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "tests/fixtures/logs"
SEARCHES = (ROOT / "benchmarks/h200/first/run", ROOT / "benchmarks/h200/confirmed/run")
GPU = "H200"
DEFAULTS: dict[str, FlagValue] = {"max-num-seqs": 1024, "max-num-batched-tokens": 8192}
"""Of vLLM 0.24's API server on this GPU (its own logs: `max_num_batched_tokens=8192`, 51 sizes of graphs up to 512)."""
_H200_GIB = gpu_gib(GPU)
_NO_MATTER = {"model", "model-tag", "port", "middleware", "served-model-name"}
_SHAPES = {"qwen2.5-7b": "7b", "qwen2.5-7b-1m": "7b-1m", "q72": "72b-fp8", "7b": "7b"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """`source`: "log", "search" or "public". `model` names the shape."""

    name: str
    source: str
    model: str
    config: EngineConfig
    facts: StartFacts
    gpu: str = GPU
    gpu_gib: float = _H200_GIB
    defaults: Mapping[str, FlagValue] = field(default_factory=lambda: DEFAULTS)

    @property
    def slice(self) -> str:
        return f"{self.model}, {self.gpu}, vLLM {self.facts.vllm_version}"


def shapes() -> dict[str, ModelShape]:
    text = json.loads((Path(__file__).parent / "shapes.json").read_text())
    return {name: parse_model_shape(config, name=name) for name, config in text.items()}


def logged() -> list[Start]:
    """Starts of the captured logs that got as far as sizing their KV cache, whether or not they then served."""
    found = []
    for file in sorted(LOGS.glob("h200_*.log.gz")):
        text = gzip.decompress(file.read_bytes()).decode()
        facts, given = read_facts(text), re.search(r"non-default args: (\{.*\})", text)
        if facts.kv_cache_gib is None or given is None:
            continue
        flags = {name.replace("_", "-"): value for name, value in ast.literal_eval(given[1]).items()}
        model = _SHAPES[Path(flags["model"]).name]
        kept = {name: value for name, value in flags.items() if name not in _NO_MATTER}
        config = EngineConfig(model=model, flags=kept)
        name = file.name.removesuffix(".log.gz")
        found.append(Start(name=name, source="log", model=model, config=config, facts=facts))
    return found


def searched() -> list[Start]:
    """Starts of the searches' trials: one per configuration, since its later starts logged the same figures."""
    found: dict[str, Start] = {}
    for folder in SEARCHES:
        for trial, facts in _trials(folder):
            flags = {name: value for name, value in trial.flags.items() if name not in _NO_MATTER}
            config = EngineConfig(model="7b", flags=flags)
            if config.key not in found:
                name = f"{folder.parent.name} {len(found)}"
                found[config.key] = Start(name=name, source="search", model="7b", config=config, facts=facts)
    return list(found.values())


def _trials(folder: Path) -> Iterator[tuple[EngineConfig, StartFacts]]:
    for record in read_trials(RunDir(folder)):
        if record.facts.kv_cache_gib is not None:
            yield record.config, record.facts


def public() -> list[Start]:
    """What others have published of starts on other GPUs: nothing of the model was fitted to these."""
    return [
        Start(
            name=row["name"],
            source="public",
            model=row["model"],
            config=EngineConfig(model=row["model"], flags=row["flags"]),
            facts=StartFacts(kv_cache_gib=row["kv_cache_gib"], vllm_version=row["vllm_version"]),
            gpu=row["gpu"],
            gpu_gib=row["memory_gib"],
            defaults=row["defaults"],
        )
        for row in json.loads((Path(__file__).parent / "public.json").read_text())
    ]
