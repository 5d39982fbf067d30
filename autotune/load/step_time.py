"""How long one engine step takes: a roofline with what surrounds it.

A step reads the weights once and the KV cache of every sequence that decodes, and computes every token of its batch:
the slower of the two is its time on the GPU (Williams et al. 2009; for LLM serving Vidur, arXiv:2405.05465). Outside of
CUDA graphs the host must launch every kernel, which a small batch waits for. On top comes what the host does per step
and per sequence, of which async scheduling hides a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.spec.config import FlagValue, number_of
from autotune.spec.graph_grid import largest_graph
from autotune.spec.model import ModelShape

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Of one model on one kind of GPU, with one of them. The defaults resemble a 7B model in bfloat16 on an H100.

    `weights_ms`: reading all weights; `kv_ns_per_token`: reading a token's KV; `compute_us_per_token`: one token
    through all layers; `launch_ms`: a step's kernels one by one; `host_ms`, `host_us_per_sequence`: between steps.
    """

    weights_ms: float = 6.0
    kv_ns_per_token: float = 22.0
    compute_us_per_token: float = 16.0
    launch_ms: float = 11.0
    host_ms: float = 0.9
    host_us_per_sequence: float = 9.0
    hidden_by_async: float = 0.7
    """Share of the host's time that async scheduling hides behind the GPU's."""
    tensor_parallel_ms: float = 0.5
    """Per step and doubling of ranks, for the all-reduces of all layers."""
    tensor_parallel_us_per_token: float = 1.0

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        *,
        tflops: float,
        tb_per_s: float,
        kv_bytes_per_token: float,
        compute_efficiency: float = 0.6,
        memory_efficiency: float = 0.75,
        host_ms: float = 0.9,
    ) -> StepTime:
        """From a data sheet's figures (dense bfloat16 TFLOP/s, TB/s) and the shares of them that are reached."""
        layers = max(1, shape.layers)
        parameters = shape.weight_bytes / 2
        return cls(
            weights_ms=shape.weight_bytes / (tb_per_s * 1e9 * memory_efficiency),
            kv_ns_per_token=kv_bytes_per_token / (tb_per_s * 1e3 * memory_efficiency),
            compute_us_per_token=2 * parameters / (tflops * 1e6 * compute_efficiency),
            launch_ms=0.35 * layers,
            host_ms=host_ms,
            tensor_parallel_ms=0.016 * layers,
            tensor_parallel_us_per_token=4e-6 * layers * shape.hidden,
        )

    def under(self, flags: Mapping[str, FlagValue], *, max_num_seqs: int) -> Step:
        """The same under an engine's flags."""
        ranks = number_of(flags, "tensor-parallel-size", 1.0)
        quantized = flags.get("quantization") not in (None, "none")
        fp8_kv = str(flags.get("kv-cache-dtype") or "auto").startswith("fp8")
        hidden = self.hidden_by_async if flags.get("async-scheduling") is True else 0.0
        return Step(
            weights_s=self.weights_ms * 1e-3 / ranks * (0.55 if quantized else 1.0),
            kv_s_per_token=self.kv_ns_per_token * 1e-9 / ranks * (0.55 if fp8_kv else 1.0),
            compute_s_per_token=self.compute_us_per_token * 1e-6 / ranks * (0.8 if quantized else 1.0)
            + (self.tensor_parallel_us_per_token * 1e-6 if ranks > 1 else 0.0),
            launch_s=self.launch_ms * 1e-3,
            host_s=self.host_ms * 1e-3 * (1.0 - hidden) + self.tensor_parallel_ms * 1e-3 * float(np.log2(ranks)),
            host_s_per_sequence=self.host_us_per_sequence * 1e-6 * (1.0 - hidden),
            largest_graph=largest_graph(flags, max_num_seqs=max_num_seqs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Seconds that a step takes, of one engine."""

    weights_s: float
    kv_s_per_token: float
    compute_s_per_token: float
    launch_s: float
    host_s: float
    host_s_per_sequence: float
    largest_graph: int

    def seconds(self, *, prefill_tokens: int, sequences: int, kv_tokens: Floats) -> Floats:
        """Of steps that decode `sequences` and read `prefill_tokens` of prompts, by the KV tokens that each reads."""
        tokens = prefill_tokens + sequences
        memory = self.weights_s + self.kv_s_per_token * kv_tokens
        busy = np.maximum(memory, self.compute_s_per_token * tokens)
        if tokens > self.largest_graph:
            busy = np.maximum(busy, self.launch_s)
        return np.asarray(busy + self.host_s + self.host_s_per_sequence * sequences, dtype=np.float64)
