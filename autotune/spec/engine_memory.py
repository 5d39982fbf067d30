"""What an engine needs besides weights and KV cache, from its shape and flags.

vLLM sizes its KV cache as its share of the GPU, less weights, less what isn't PyTorch's, less the highest point of a
profiling run, less an estimate of its CUDA graphs (vllm/v1/worker/gpu_worker.py, `determine_available_memory`). The
profiling run has two steps, one after the other, so that the higher one counts: max-num-batched-tokens through the
model, then the sampler for max-num-seqs.

Four constants are measured, on an H200 with vLLM 0.24 (benchmarks/memory_model): `LOADED_GIB`, `_CONTEXT_GIB`,
`_GRAPH_BYTES_PER_LAYER` and `_BYTES_PER_LOGIT`. The bytes of a token between matrices are counted, and agree with the
logs at 8192 and 16384 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.spec.config import FlagValue
from autotune.spec.graph_grid import GRID
from autotune.spec.model import ModelShape

_GIB = 1024**3

LOADED_GIB = 0.1
"""What "Model loading took" says beyond the checkpoint's bytes: tensors occupy whole blocks of PyTorch's allocator.
0.10 and 0.09 GiB for the 7B shape in bf16 and fp8, 0.11 for the 72B shape."""
_CONTEXT_GIB = 0.36
"""cuBLAS and FlashAttention kernels as they are loaded, their workspaces. The 7B shape's starts leave 0.34 to 0.37
unexplained, the 72B shape's one 0.30. The CUDA context itself is there before vLLM looks, and isn't counted."""
_GRAPH_BYTES_PER_LAYER = 0.18 * 1024**2
"""A graph's nodes: 102 graphs of 28 layers are estimated at 0.51 GiB, 30 of them at 0.14 GiB."""
_COMMUNICATION_GIB = 0.6
"""NCCL's buffers and those of vLLM's own all-reduce. Assumed: no start with several GPUs was measured."""
_BYTES_PER_LOGIT = 14
"""By which starts with 512 and 1024 sequences differ. It is what bf16 logits (2), an fp32 copy (4), probabilities (4)
and the noise that samples from them (4) add up to."""
_FULL_GRAPHS_ONLY = {"FULL", "FULL_DECODE_ONLY"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """GiB on one GPU. `activations_gib` and `sampler_gib` are peaks at different times and `least_gib` is a floor:
    `peak_gib` is the largest of them."""

    context_gib: float
    communication_gib: float
    graphs_gib: float
    activations_gib: float
    sampler_gib: float
    least_gib: float

    @property
    def peak_gib(self) -> float:
        return max(self.activations_gib, self.sampler_gib, self.least_gib)

    @property
    def total_gib(self) -> float:
        return self.context_gib + self.communication_gib + self.graphs_gib + self.peak_gib


def overhead(
    shape: ModelShape,
    *,
    tokens: int,
    sequences: int,
    tensor: int,
    pipeline: int,
    graphs: GraphFlags,
    made_up: bool,
) -> Overhead:
    """`tokens`: max-num-batched-tokens; `sequences`: max-num-seqs; `tensor` and `pipeline`: degrees of parallelism;
    `made_up`: whether the weights are (load-format dummy).

    Making them up leaves a floor under the profiling run's peak: that of the largest tensor, less what loading left.
    That is 0.92 GiB for the 7B shape, whose small batches peaked at 0.89 to 0.95. Public logs of engines that loaded a
    checkpoint have no such floor (benchmarks/memory_model/public.json).
    """
    hidden_bytes = tokens * shape.hidden * shape.dtype_bytes
    rows = min(sequences, tokens)
    return Overhead(
        context_gib=_CONTEXT_GIB,
        communication_gib=_COMMUNICATION_GIB if tensor > 1 else 0.0,
        graphs_gib=graphs.count(sequences) * -(-shape.layers // pipeline) * _GRAPH_BYTES_PER_LAYER / _GIB,
        # Around a feed-forward layer: its input and the residual, and what is between its matrices.
        activations_gib=(2 * hidden_bytes + tokens * shape.dtype_bytes * _inner_width(shape, tensor)) / _GIB,
        # The step's last hidden states are still there.
        sampler_gib=(hidden_bytes + rows * shape.vocabulary * _BYTES_PER_LOGIT) / _GIB,
        least_gib=shape.vocabulary * shape.hidden * shape.dtype_bytes / tensor / _GIB - LOADED_GIB if made_up else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFlags:
    """`largest`: max-cudagraph-capture-size where it is given. `mode`: compilation-config.cudagraph_mode."""

    eager: bool
    largest: int | None
    mode: str | None

    @classmethod
    def of(cls, flags: Mapping[str, FlagValue]) -> GraphFlags:
        largest = flags.get("max-cudagraph-capture-size")
        mode = flags.get("compilation-config.cudagraph_mode")
        return cls(
            eager=flags.get("enforce-eager") is True,
            largest=largest if isinstance(largest, int) and not isinstance(largest, bool) else None,
            mode=str(mode) if mode is not None else None,
        )

    def count(self, sequences: int) -> int:
        """Graphs to capture: for each size one in pieces, and for decoding one in full up to max-num-seqs."""
        if self.eager or self.mode == "NONE":
            return 0
        largest = self.largest if self.largest is not None else min(2 * sequences, GRID[-1])
        sizes = [size for size in (*GRID, *range(GRID[-1] + 16, largest + 1, 16)) if size <= largest]
        pieces = 0 if self.mode in _FULL_GRAPHS_ONLY else len(sizes)
        full = 0 if self.mode == "PIECEWISE" else sum(size <= sequences for size in sizes)
        return pieces + full


def _inner_width(shape: ModelShape, tensor: int) -> float:
    """Elements per token between a feed-forward layer's matrices: gate and up, and their product.

    Experts: the buffers of vLLM's fused kernel, for each expert that a token takes (modular_kernel.py; not measured).
    """
    if not shape.experts:
        return 3 * shape.intermediate / tensor
    inner = (shape.expert_intermediate or shape.intermediate) / tensor
    return max(1, shape.experts_per_token) * (max(2 * inner, shape.hidden) + inner)
