"""The problems: a model on GPUs, traffic, the flags that are searched, what is wanted.

Written down before any method ran on them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from autotune.engine.simulated import SimulatedLauncher
from autotune.load.simulated import SimulatedLoader
from autotune.spec.config import FlagValue
from autotune.spec.objective import Budget, Objective, Slo
from autotune.spec.problem import Problem
from autotune.spec.rules import Rule
from autotune.spec.space import Choice, Dimension, SearchSpace
from autotune.spec.workload import (
    ClosedLoop,
    Conversation,
    FixedLength,
    GammaArrivals,
    Lengths,
    LogNormalLength,
    Poisson,
    RequestShape,
    Rung,
    SharedPrefix,
    UniformLength,
    Workload,
)
from benchmarks.search.machines import DEFAULTS, GPUS, engine

FULL_TRIALS = 80
"""The budget: the GPU-seconds of so many full-length trials, of the median over what runs."""
WARM_UP_S = 2.0
STOP_S = 3.0
"""From the end of a trial until its GPUs are free, whoever runs it."""
VERSION = 1
"""Counted up when a definition changes: results of another version are not mixed in."""

THROUGHPUT = Objective(metric="output_tok_per_s_per_gpu", direction="maximize")
GOODPUT = Objective(metric="goodput_rps_per_gpu", direction="maximize")
TTFT = Objective(metric="ttft_p99_ms", direction="minimize")
TPOT = Objective(metric="tpot_p99_ms", direction="minimize")
E2E = Objective(metric="e2e_p90_ms", direction="minimize")

SEQS = (8, 16, 32, 64, 128, 256, 512)
BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
UTILIZATIONS = (0.80, 0.85, 0.90, 0.93, 0.96)
ON_OFF = (True, False)

RULES = (Rule(text="max-num-batched-tokens >= max-num-seqs"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`cv`: between runs of one configuration, relative; `deviation`: see `machines.engine`."""

    name: str
    problem: Problem
    model: str
    gpu: str
    devices: int
    cv: float
    deviation: float

    @property
    def engine(self) -> tuple[SimulatedLauncher, SimulatedLoader]:
        return engine(self.model, self.gpu, deviation=self.deviation)

    @property
    def gpu_gib(self) -> float:
        return GPUS[self.gpu].gib

    @property
    def digest(self) -> str:
        """Of all that decides a problem's table."""
        text = repr((VERSION, self.problem.space, self.problem.workload, self.problem.slos, self.engine, self.devices))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def within(metric: str) -> float:
    """A full rung's own standard error, relative: tails are less sure than means."""
    return 0.05 if "_p99_" in metric else 0.03 if "_p90_" in metric else 0.015


def _flags(**domains: tuple[FlagValue, ...]) -> tuple[Dimension, ...]:
    return tuple(
        Dimension(name=name.replace("_", "-"), domain=Choice(values=values)) for name, values in domains.items()
    )


def _case(
    name: str,
    *,
    model: str,
    gpu: str,
    prompt: Lengths,
    output: Lengths,
    rung: Rung,
    dimensions: tuple[Dimension, ...],
    objectives: tuple[Objective, ...],
    slos: tuple[Slo, ...] = (),
    max_model_len: int,
    devices: int = 1,
    cv: float = 0.03,
    deviation: float = 0.01,
    prefix: SharedPrefix | None = None,
    conversation: Conversation | None = None,
) -> Case:
    shape = RequestShape(prompt=prompt, output=output, prefix=prefix, conversation=conversation)
    workload = Workload(name=name, shapes=(shape,), rungs=(rung,), reference_rungs=(rung.name,))
    space = SearchSpace(
        name=name, model=model, dimensions=dimensions, fixed={"max-model-len": max_model_len}, rules=RULES
    )
    problem = Problem(
        space=space,
        workload=workload,
        objectives=objectives,
        slos=slos,
        budget=Budget(wall_s=None),
        seed=0,
        defaults=DEFAULTS,
    )
    return Case(
        name=name,
        problem=problem,
        model=model,
        gpu=gpu,
        devices=devices,
        cv=cv,
        deviation=deviation,
    )


def _closed(concurrency: int, requests: int) -> Rung:
    return Rung(name="steady", arrivals=ClosedLoop(concurrency=concurrency), requests=requests)


CASES: tuple[Case, ...] = (
    _case(
        "chat-7b-h100",
        model="qwen2.5-7b",
        gpu="H100",
        prompt=LogNormalLength(median=350, sigma=0.7, low=32, high=3000),
        output=LogNormalLength(median=180, sigma=0.5, low=16, high=900),
        rung=_closed(192, 500),
        dimensions=_flags(
            max_num_seqs=SEQS,
            max_num_batched_tokens=BUDGETS,
            gpu_memory_utilization=UTILIZATIONS,
            async_scheduling=ON_OFF,
            enforce_eager=ON_OFF,
            enable_prefix_caching=ON_OFF,
        ),
        objectives=(THROUGHPUT, TTFT),
        slos=(Slo(metric="tpot_p99_ms", limit=45.0),),
        max_model_len=4096,
    ),
    _case(
        "documents-8b-h100",
        model="llama-3.1-8b",
        gpu="H100",
        prompt=UniformLength(low=1500, high=11000),
        output=LogNormalLength(median=120, sigma=0.4, low=16, high=500),
        prefix=SharedPrefix(tokens=900),
        rung=_closed(32, 160),
        dimensions=_flags(
            max_num_seqs=(4, 8, 16, 32, 64, 128),
            max_num_batched_tokens=(1024, 2048, 4096, 8192, 16384, 32768),
            enable_chunked_prefill=ON_OFF,
            long_prefill_token_threshold=(0, 1024),
            kv_cache_dtype=("auto", "fp8"),
            enable_prefix_caching=ON_OFF,
            gpu_memory_utilization=(0.85, 0.9, 0.95),
        ),
        objectives=(THROUGHPUT, TTFT, TPOT),
        max_model_len=16384,
        deviation=0.02,
    ),
    _case(
        "long-answers-8b-4090",
        model="llama-3.1-8b",
        gpu="RTX-4090",
        prompt=LogNormalLength(median=200, sigma=0.5, low=32, high=1000),
        output=LogNormalLength(median=400, sigma=0.4, low=64, high=1200),
        rung=_closed(64, 160),
        dimensions=_flags(
            gpu_memory_utilization=(0.70, 0.80, 0.86, 0.90, 0.93, 0.95, 0.97, 0.98),
            max_num_seqs=SEQS,
            max_num_batched_tokens=BUDGETS,
            kv_cache_dtype=("auto", "fp8"),
            enforce_eager=ON_OFF,
        ),
        objectives=(THROUGHPUT, TPOT),
        max_model_len=4096,
        cv=0.02,
        deviation=0.015,
    ),
    _case(
        "few-users-1.5b-l40s",
        model="qwen2.5-1.5b",
        gpu="L40S",
        prompt=LogNormalLength(median=250, sigma=0.6, low=32, high=1800),
        output=LogNormalLength(median=120, sigma=0.4, low=16, high=400),
        rung=_closed(4, 80),
        dimensions=_flags(
            max_num_seqs=(2, 4, 16, 64, 256),
            max_num_batched_tokens=(512, 1024, 2048, 4096),
            gpu_memory_utilization=(0.7, 0.8, 0.9),
            enforce_eager=ON_OFF,
            block_size=(16, 32),
            enable_chunked_prefill=ON_OFF,
        ),
        objectives=(THROUGHPUT, TTFT),
        max_model_len=4096,
        cv=0.03,
    ),
    _case(
        "chat-32b-4xh100",
        model="qwen2.5-32b",
        gpu="H100",
        devices=4,
        prompt=LogNormalLength(median=500, sigma=0.7, low=32, high=3500),
        output=LogNormalLength(median=220, sigma=0.5, low=16, high=900),
        rung=_closed(96, 300),
        dimensions=_flags(
            tensor_parallel_size=(1, 2, 4),
            max_num_seqs=(16, 32, 64, 128, 256),
            max_num_batched_tokens=BUDGETS,
            gpu_memory_utilization=UTILIZATIONS,
            kv_cache_dtype=("auto", "fp8"),
        ),
        objectives=(THROUGHPUT, TTFT, TPOT),
        max_model_len=8192,
        deviation=0.01,
    ),
    _case(
        "summaries-70b-4xh200",
        model="llama-3.3-70b",
        gpu="H200",
        devices=4,
        prompt=LogNormalLength(median=1800, sigma=0.5, low=200, high=7000),
        output=LogNormalLength(median=250, sigma=0.4, low=32, high=800),
        rung=_closed(64, 200),
        dimensions=_flags(
            tensor_parallel_size=(1, 2, 4),
            max_num_seqs=(8, 16, 32, 64, 128, 256),
            max_num_batched_tokens=(1024, 2048, 4096, 8192, 16384),
            gpu_memory_utilization=(0.85, 0.9, 0.93, 0.96),
            async_scheduling=ON_OFF,
            enable_chunked_prefill=ON_OFF,
        ),
        objectives=(THROUGHPUT, TTFT),
        slos=(Slo(metric="tpot_p99_ms", limit=80.0),),
        max_model_len=8192,
        deviation=0.008,
    ),
    _case(
        "bursts-7b-a100",
        model="qwen2.5-7b",
        gpu="A100-80GB",
        prompt=LogNormalLength(median=700, sigma=0.6, low=64, high=4000),
        output=LogNormalLength(median=160, sigma=0.5, low=16, high=700),
        rung=Rung(name="bursts", arrivals=GammaArrivals(rate_rps=9.0, burstiness=0.35), requests=350),
        dimensions=_flags(
            max_num_seqs=SEQS,
            max_num_batched_tokens=BUDGETS,
            gpu_memory_utilization=(0.7, 0.8, 0.9, 0.95),
            kv_cache_dtype=("auto", "fp8"),
            async_scheduling=ON_OFF,
            enforce_eager=ON_OFF,
        ),
        objectives=(GOODPUT, E2E),
        slos=(Slo(metric="ttft_p99_ms", limit=2500.0), Slo(metric="tpot_p99_ms", limit=75.0)),
        max_model_len=8192,
        cv=0.03,
    ),
    _case(
        "noisy-chat-14b-l40s",
        model="qwen2.5-14b",
        gpu="L40S",
        prompt=LogNormalLength(median=300, sigma=0.6, low=32, high=1800),
        output=LogNormalLength(median=150, sigma=0.5, low=16, high=600),
        rung=_closed(64, 200),
        dimensions=_flags(
            max_num_seqs=SEQS,
            max_num_batched_tokens=BUDGETS,
            gpu_memory_utilization=(0.75, 0.85, 0.9, 0.93, 0.96),
            enable_prefix_caching=ON_OFF,
            enforce_eager=ON_OFF,
        ),
        objectives=(THROUGHPUT, TTFT),
        max_model_len=4096,
        cv=0.10,
        deviation=0.02,
    ),
    _case(
        "agents-8b-h200",
        model="llama-3.1-8b",
        gpu="H200",
        prompt=LogNormalLength(median=300, sigma=0.5, low=32, high=1500),
        output=LogNormalLength(median=120, sigma=0.4, low=16, high=400),
        prefix=SharedPrefix(tokens=2000, groups=4),
        conversation=Conversation(turns=FixedLength(tokens=4), think_s=0.5),
        rung=_closed(160, 480),
        dimensions=_flags(
            enable_prefix_caching=ON_OFF,
            max_num_seqs=(16, 32, 64, 128, 256, 512),
            max_num_batched_tokens=BUDGETS,
            block_size=(16, 32, 64),
            async_scheduling=ON_OFF,
            gpu_memory_utilization=(0.3, 0.5, 0.7, 0.9),
        ),
        objectives=(THROUGHPUT, TTFT),
        max_model_len=12288,
        cv=0.04,
    ),
    _case(
        # Steps that carry prompts run under a graph only where a large one was captured (a launch flag) and the token
        # budget stays within it (a live setting); each by itself costs throughput.
        "smooth-stream-7b-h200",
        model="qwen2.5-7b",
        gpu="H200",
        prompt=LogNormalLength(median=450, sigma=0.6, low=64, high=3000),
        output=LogNormalLength(median=140, sigma=0.4, low=16, high=500),
        rung=Rung(name="stream", arrivals=Poisson(rate_rps=16.0), requests=400),
        dimensions=_flags(
            max_cudagraph_capture_size=(8, 32, 128, 512),
            max_num_batched_tokens=(256, 512, 1024, 2048, 4096, 8192),
            max_num_seqs=(32, 64, 128, 256),
            long_prefill_token_threshold=(0, 256, 1024),
            async_scheduling=ON_OFF,
            gpu_memory_utilization=(0.5, 0.9),
        ),
        objectives=(TPOT, TTFT),
        max_model_len=4096,
        cv=0.02,
    ),
)
