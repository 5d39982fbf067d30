"""Every configuration of a problem, run once without noise: what methods replay."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from autotune.load.statistics import measure
from autotune.search.points import effective_key, every_point
from autotune.spec.config import EngineConfig
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import StartFacts
from autotune.spec.verdict import Bound, EngineFailure
from benchmarks.search.machines import DEFAULTS
from benchmarks.search.problems import FULL_TRIALS, STOP_S, WARM_UP_S, Case

TABLES = Path(__file__).parent / "problems"
SEED = 11
METRICS = (
    "output_tok_per_s_per_gpu",
    "goodput_rps_per_gpu",
    "ttft_p99_ms",
    "tpot_p99_ms",
    "e2e_p90_ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`cause` None: it ran. `start_s`: until it served, or failed to. `load_s`: of the reference rung, or until it
    died. `facts`: of its start, where it got so far."""

    key: str
    gpus: int
    cause: str | None
    stage: str
    shortfall: float
    bounds: tuple[Bound, ...]
    start_s: float
    load_s: float
    requests: int
    values: Mapping[str, float] = field(default_factory=dict)
    facts: StartFacts = field(default_factory=StartFacts)

    def losses(self, case: Case) -> tuple[float, ...]:
        """Smaller is better, per objective."""
        return tuple(objective.sign * self.values[objective.metric] for objective in case.problem.objectives)

    def meets(self, case: Case) -> bool:
        """It ran and keeps every limit."""
        return self.cause is None and all(slo.keeps(self.values[slo.metric]) for slo in case.problem.slos)


def full_gpu_s(row: Row) -> float:
    """Of a trial that runs to its end, from its start until its GPUs are free."""
    return row.gpus * (row.start_s + WARM_UP_S + row.load_s + STOP_S)


def budget_gpu_s(rows: Mapping[str, Row]) -> float:
    return FULL_TRIALS * statistics.median(full_gpu_s(row) for row in rows.values() if row.cause is None)


def key_of(config: EngineConfig) -> str:
    return effective_key(config, DEFAULTS)


def configs(case: Case) -> dict[str, EngineConfig]:
    """The default and every point, whether or not it keeps the rules: a method that doesn't know them launches it."""
    space = case.problem.space
    found = {key_of(space.default()): space.default()}
    for point in every_point(space):
        config = space.decode(point)
        found.setdefault(key_of(config), config)
    return found


def run(case: Case, key: str, config: EngineConfig) -> Row:
    launcher, loader = case.engine
    filled = EngineConfig(model=config.model, flags={**DEFAULTS, **config.flags}, env=config.env)
    rung = case.problem.workload.reference
    with launcher(filled, tuple(map(str, range(config.gpus))), name="t", cancelled=lambda: False) as started:
        if isinstance(started, EngineFailure):
            return _failed(key, config.gpus, started, start_s=started.after_s, load_s=0.0)
        assert isinstance(started, Endpoint)
        blocks = list(loader(started, case.problem.workload, rung, seed=SEED))
        load_s = blocks[-1].elapsed_s
        if (died := started.failure()) is not None:
            return _failed(key, config.gpus, died, start_s=started.start_s, load_s=load_s, facts=started.facts)
        records = [record for block in blocks for record in block.records]
        shown = measure(
            rung,
            records,
            elapsed_s=load_s,
            sending_until_s=next((block.elapsed_s for block in blocks if not block.sending), load_s),
            gpus=config.gpus,
            slos=case.problem.slos,
            samples=(),
            complete=True,
        )
    values = {metric: value for metric in METRICS if (value := shown.value(metric)) is not None}
    return Row(
        key=key,
        gpus=config.gpus,
        cause=None,
        stage="ready",
        shortfall=0.0,
        bounds=(),
        start_s=started.start_s,
        load_s=load_s,
        requests=len(records),
        values=values,
        facts=started.facts,
    )


def _failed(
    key: str, gpus: int, failure: EngineFailure, *, start_s: float, load_s: float, facts: StartFacts | None = None
) -> Row:
    return Row(
        key=key,
        gpus=gpus,
        cause=failure.cause,
        stage=failure.stage,
        shortfall=failure.shortfall,
        bounds=failure.bounds,
        start_s=start_s,
        load_s=load_s,
        requests=0,
        facts=facts or StartFacts(),
    )


def _rows(case: Case, items: list[tuple[str, EngineConfig]]) -> list[Row]:
    return [run(case, key, config) for key, config in items]


def enumerate_case(case: Case, *, processes: int) -> Path:
    """Writes the problem's table; returns its file."""
    items = list(configs(case).items())
    parts = [items[start : start + 50] for start in range(0, len(items), 50)]
    with ProcessPoolExecutor(processes) as pool:
        rows = [row for part in pool.map(_rows, [case] * len(parts), parts) for row in part]
    return write(case, rows)


def write(case: Case, rows: list[Row]) -> Path:
    columns = {
        "key": [row.key for row in rows],
        "gpus": [row.gpus for row in rows],
        "cause": pa.array([row.cause for row in rows], pa.string()),
        "stage": [row.stage for row in rows],
        "shortfall": [row.shortfall for row in rows],
        "bounds": [json.dumps([bound.form() for bound in row.bounds]) for row in rows],
        "start_s": [row.start_s for row in rows],
        "load_s": [row.load_s for row in rows],
        "requests": [row.requests for row in rows],
        "kv_cache_gib": pa.array([row.facts.kv_cache_gib for row in rows], pa.float64()),
        "kv_cache_tokens": pa.array([row.facts.kv_cache_tokens for row in rows], pa.int64()),
        **{metric: pa.array([row.values.get(metric) for row in rows], pa.float64()) for metric in METRICS},
    }
    table = pa.table(columns).replace_schema_metadata({"definition": case.digest})
    TABLES.mkdir(exist_ok=True)
    file = TABLES / f"{case.name}.parquet"
    pq.write_table(table, file, compression="zstd")
    return file


def read(case: Case) -> dict[str, Row]:
    """Raises SystemExit where there is no table of this definition."""
    file = TABLES / f"{case.name}.parquet"
    table = pq.read_table(file) if file.exists() else None
    if table is None or (table.schema.metadata or {}).get(b"definition", b"").decode() != case.digest:
        raise SystemExit(f"{file} isn't of this definition: run `python -m benchmarks.search enumerate` first")
    return {row.key: row for row in _read(table)}


def _read(table: pa.Table) -> Iterator[Row]:
    for row in table.to_pylist():
        yield Row(
            key=row["key"],
            gpus=row["gpus"],
            cause=row["cause"],
            stage=row["stage"],
            shortfall=row["shortfall"],
            bounds=tuple(Bound.read(form) for form in json.loads(row["bounds"])),
            start_s=row["start_s"],
            load_s=row["load_s"],
            requests=row["requests"],
            values={metric: row[metric] for metric in METRICS if row[metric] is not None},
            facts=StartFacts(kv_cache_gib=row["kv_cache_gib"], kv_cache_tokens=row["kv_cache_tokens"]),
        )
