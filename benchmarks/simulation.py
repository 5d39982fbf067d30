"""How far the simulated engine is from real ones, before and after its constants are fitted.

`python -m benchmarks.simulation [--quick]`. Two comparisons, each of a closed loop's throughput, median time per token
and median time to the first token, as relative errors |simulated / measured - 1|, medians over configurations:

- **CPU**: the tiny model of tiny-cpu on real engines of this machine, `CONFIGS` one after the other, two rungs each
  (the second counts). Four constants of `load.step_time` are fitted on every other configuration;
  `cpu_*_rel_err_median` is that of the rest, `cpu_in_sample_*` of those that were fitted.
- **H200**: the measured runs of benchmarks/h200 (Qwen2.5-7B's shape, vLLM 0.24), replayed with the constants that
  `benchmarks.search` uses, which nobody fitted (`h200_assumed_*`), and with four constants fitted on every other
  configuration (`h200_*`: the rest; `h200_in_sample_*`).

Vidur states less than 9 % latency error of a fitted simulator; that is what a calibrated one should reach.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from scipy.optimize import minimize

from autotune.engine.catalogue import read_catalogue
from autotune.engine.fork_server import ForkServer
from autotune.engine.model_files import resolve_model
from autotune.engine.vllm import VllmLauncher
from autotune.load.http import HttpLoader
from autotune.load.simulated import SimulatedLoader
from autotune.load.statistics import measure
from autotune.load.step_time import StepTime
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import EngineSample, LoadBlock, Measurement, StartFacts
from autotune.spec.space_file import Overrides, parse_problem, read_sources
from autotune.spec.workload import ClosedLoop, RequestShape, Rung, UniformLength, Workload
from benchmarks.result import Result
from benchmarks.search.machines import DEFAULTS, engine

METRICS = ("output_tok_per_s_per_gpu", "tpot_p50_ms", "ttft_p50_ms")
SHORT = {"output_tok_per_s_per_gpu": "throughput", "tpot_p50_ms": "tpot", "ttft_p50_ms": "ttft"}
CONFIGS: tuple[dict[str, FlagValue], ...] = tuple(
    {"max-num-seqs": seqs, "max-num-batched-tokens": tokens}
    for seqs, tokens in ((4, 256), (8, 2048), (16, 256), (32, 2048), (32, 512), (64, 4096))
)
FITTED = ("weights_ms", "compute_us_per_token", "host_ms", "host_us_per_sequence")
SEED = 5
H200 = Path(__file__).parent / "h200"
H200_WORKLOAD = Workload(
    name="h200",
    shapes=(RequestShape(prompt=UniformLength(low=384, high=640), output=UniformLength(low=96, high=160)),),
    rungs=(Rung(name="busy", arrivals=ClosedLoop(concurrency=256), requests=400, duration_s=12.0),),
    reference_rungs=("busy",),
)
"""That of both measured runs (benchmarks/h200/*/workload.yaml)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A configuration that ran: what an engine showed under `workload`, with so many tokens of KV cache."""

    flags: Mapping[str, FlagValue]
    workload: Workload
    kv_tokens: int | None
    values: Mapping[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation")
    parser.add_argument("--quick", action="store_true", help="two CPU configurations; not written")
    quick = parser.parse_args().quick
    rows: list[dict[str, str | float]] = []
    figures: dict[str, float] = {}
    assumed = engine("qwen2.5-7b", "H200", deviation=0.0)[1].step
    h200 = measured_h200()
    figures |= errors("h200_assumed", assumed, h200, rows)
    figures |= fit_and_predict("h200", assumed, h200, rows)
    cpu = list(measured_cpu(CONFIGS[:2] if quick else CONFIGS))
    start = StepTime(weights_ms=2.0, compute_us_per_token=20.0, launch_ms=0.0, host_ms=1.0, host_us_per_sequence=20.0)
    figures |= fit_and_predict("cpu", start, cpu, rows)
    result = Result(name="simulation", figures=figures)
    sys.stdout.write(result.table() + "\n")
    if not quick:
        result.write(pa.Table.from_pylist(rows))


def measured_h200() -> list[Seen]:
    """One per configuration: medians over its runs."""
    runs: dict[str, list[dict[str, object]]] = {}
    for folder in ("first", "confirmed"):
        table = ds.dataset(H200 / folder / "run" / "trials.parquet").to_table()
        for row in table.to_pylist():
            if row["verdict"] == "measured":
                runs.setdefault(row["flags"], []).append(row)
    return [
        Seen(
            flags={name: value for name, value in json.loads(flags).items() if value is not None},
            workload=H200_WORKLOAD,
            kv_tokens=int(statistics.median(int(str(row["kv_cache_tokens"])) for row in found)),
            values={metric: statistics.median(float(str(row[metric])) for row in found) for metric in METRICS},
        )
        for flags, found in sorted(runs.items())
    ]


def measured_cpu(configs: Sequence[Mapping[str, FlagValue]]) -> Iterator[Seen]:
    catalogue = read_catalogue(None)
    problem = parse_problem(
        read_sources("tiny-cpu", None), catalogue=catalogue, allow_quality_loss=False, allow=(), overrides=Overrides()
    )
    default, python = problem.space.default(), Path(catalogue.python)
    with (
        tempfile.TemporaryDirectory(prefix="vtune-simulation-") as folder,
        ForkServer(vllm_python=python, log=Path(folder) / "fork-server.log", env=dict(os.environ)) as server,
    ):
        launcher = VllmLauncher(
            vllm_python=python,
            logs=Path(folder),
            platform="cpu",
            fork_server=server,
            known_flags=frozenset(catalogue.flags) | catalogue.server_flags,
        )
        for number, flags in enumerate(configs):
            config = replace(default, model=resolve_model(default.model), flags={**default.flags, **flags})
            with launcher(config, ("cpu",), name=f"e{number}", cancelled=lambda: False) as started:
                if not isinstance(started, Endpoint):
                    raise RuntimeError(f"no engine: {started.cause}: {started.evidence}")
                rung = problem.workload.reference
                for seed in (1, SEED):  # the first warms it up
                    blocks = list(HttpLoader()(started, problem.workload, rung, seed=seed))
                shown = measured(rung, blocks)
                yield Seen(
                    flags=config.flags,
                    workload=problem.workload,
                    kv_tokens=started.facts.kv_cache_tokens,
                    values=values_of(shown),
                )


def measured(rung: Rung, blocks: Sequence[LoadBlock]) -> Measurement:
    return measure(
        rung,
        [record for block in blocks for record in block.records],
        elapsed_s=blocks[-1].elapsed_s,
        sending_until_s=next((block.elapsed_s for block in blocks if not block.sending), blocks[-1].elapsed_s),
        gpus=1,
        slos=(),
        samples=(),
        complete=True,
    )


def values_of(shown: Measurement) -> dict[str, float]:
    return {metric: value for metric in METRICS if (value := shown.value(metric)) is not None}


def simulated(seen: Seen, step: StepTime) -> dict[str, float]:
    """The same configuration and load on the simulated engine, whose KV cache is as large as the real one's."""
    flags = {**DEFAULTS, **seen.flags}
    endpoint = Endpoint(
        url="simulated://calibration",
        api_key="",
        served_model="m",
        config=EngineConfig(model="m", flags=flags),
        devices=("0",),
        argv=(),
        start_s=0.0,
        facts=StartFacts(kv_cache_tokens=seen.kv_tokens),
        scrape=lambda: EngineSample(at_s=0.0),
        failure=lambda: None,
    )
    rung = seen.workload.reference
    return values_of(
        measured(rung, list(SimulatedLoader(noise=0.0, step=step)(endpoint, seen.workload, rung, seed=SEED)))
    )


def fit_and_predict(
    name: str, start: StepTime, seen: Sequence[Seen], rows: list[dict[str, str | float]]
) -> dict[str, float]:
    step = fitted(start, seen[::2])
    figures = errors(f"{name}_in_sample", step, seen[::2], rows) | errors(name, step, seen[1::2], rows)
    return figures | {f"{name}_fitted_{constant}": getattr(step, constant) for constant in FITTED}


def fitted(start: StepTime, seen: Sequence[Seen], *, most: int = 200) -> StepTime:
    """The constants that make the squared relative errors of all metrics smallest (Nelder-Mead, in logarithms)."""

    def step_of(theta: np.ndarray[tuple[int], np.dtype[np.float64]]) -> StepTime:
        return replace(start, **{name: float(np.exp(value)) for name, value in zip(FITTED, theta, strict=True)})

    def cost(theta: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        step = step_of(theta)
        return sum(
            float(np.log(found[metric] / one.values[metric])) ** 2
            for one in seen
            for found in [simulated(one, step)]
            for metric in METRICS
        )

    begin = np.log([getattr(start, name) for name in FITTED])
    simplex = np.vstack([begin, *(begin + 0.4 * row for row in np.eye(len(begin)))])
    options = {"maxfev": most, "xatol": 0.01, "fatol": 1e-4, "initial_simplex": simplex}
    found = minimize(cost, begin, method="Nelder-Mead", options=options)
    return step_of(found.x)


def errors(name: str, step: StepTime, seen: Sequence[Seen], rows: list[dict[str, str | float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for one in seen:
        given = simulated(one, step)
        for metric in METRICS:
            found[metric].append(abs(given[metric] / one.values[metric] - 1.0))
            rows.append(
                {
                    "comparison": name,
                    "flags": json.dumps(dict(one.flags), sort_keys=True),
                    "metric": metric,
                    "measured": one.values[metric],
                    "simulated": given[metric],
                }
            )
    medians = {f"{name}_{SHORT[metric]}_rel_err_median": statistics.median(values) for metric, values in found.items()}
    return medians | {f"{name}_configurations": len(seen)}


if __name__ == "__main__":
    main()
