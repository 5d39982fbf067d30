"""The models and GPUs of the problems, as simulated engines.

Memory, start times and step times follow constants of this file and of the simulated engine, not vtune's memory model:
where vtune predicts what fits, it is as wrong here as its model's simplifications make it. Each pair of model and GPU
has its own deviation in weights and overhead on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.engine.simulated import SimulatedLauncher
from autotune.load.simulated import SimulatedLoader
from autotune.load.step_time import StepTime
from autotune.spec.config import FlagValue
from autotune.spec.model import ModelShape, parse_model_shape

_GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """`gib` that a process sees; dense bfloat16 TFLOP/s and TB/s as the maker's data sheet says."""

    name: str
    gib: float
    tflops: float
    tb_per_s: float
    fp8_kv: bool = True


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(name="H200", gib=139.8, tflops=989.0, tb_per_s=4.8),
        Gpu(name="H100", gib=79.2, tflops=989.0, tb_per_s=3.35),
        Gpu(name="A100-80GB", gib=79.2, tflops=312.0, tb_per_s=2.04, fp8_kv=False),
        Gpu(name="L40S", gib=44.4, tflops=362.0, tb_per_s=0.864),
        Gpu(name="RTX-4090", gib=23.5, tflops=165.0, tb_per_s=1.008),
    )
}


def _config(
    hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int, architecture: str
) -> dict[str, Any]:
    """As the model's own config.json has it."""
    return {
        "architectures": [architecture],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }


QWEN, LLAMA = "Qwen2ForCausalLM", "LlamaForCausalLM"
MODELS = {
    "qwen2.5-1.5b": _config(1536, 28, 12, 2, 8960, 151936, QWEN),
    "qwen2.5-7b": _config(3584, 28, 28, 4, 18944, 152064, QWEN),
    "llama-3.1-8b": _config(4096, 32, 32, 8, 14336, 128256, LLAMA),
    "qwen2.5-14b": _config(5120, 48, 40, 8, 13824, 152064, QWEN),
    "qwen2.5-32b": _config(5120, 64, 40, 8, 27648, 152064, QWEN),
    "llama-3.3-70b": _config(8192, 80, 64, 8, 28672, 128256, LLAMA),
}


def shape_of(model: str) -> ModelShape:
    return parse_model_shape(MODELS[model], name=model)


DEFAULTS: dict[str, FlagValue] = {
    "max-num-seqs": 256,
    "max-num-batched-tokens": 2048,
    "gpu-memory-utilization": 0.9,
    "enable-prefix-caching": True,
    "enable-chunked-prefill": True,
    "long-prefill-token-threshold": 0,
    "async-scheduling": False,
    "enforce-eager": False,
    "kv-cache-dtype": "auto",
    "block-size": 16,
    "tensor-parallel-size": 1,
}
"""What an engine takes that isn't told otherwise."""


def engine(model: str, gpu: str, *, deviation: float) -> tuple[SimulatedLauncher, SimulatedLoader]:
    """`deviation`: how much more memory this pair takes than the formula says, as a share of its weights."""
    shape, card = shape_of(model), GPUS[gpu]
    weights_gib = shape.weight_bytes / _GIB
    kv_bytes = 2 * shape.layers * shape.kv_heads * shape.head_size * 2
    launcher = SimulatedLauncher(
        gpu_gib=card.gib,
        weights_gib=weights_gib * (1.0 + deviation),
        overhead_gib=0.9 + 10 * abs(deviation),
        activation_gib_per_1k_tokens=1024 * (3 * shape.intermediate + 4 * shape.hidden) * 2 / _GIB,
        sampler_gib_per_1k_seqs=1024 * shape.vocabulary * 10 / _GIB,
        unforeseen_gib_per_1k_seqs=0.25 * card.gib,
        graphs_gib=0.3 + 0.008 * shape.layers,
        kv_mib_per_token=kv_bytes / 2**20,
        import_s=20.0,
        load_s_per_gib=0.25,
        compile_s=10.0 + 0.35 * shape.layers,
        graphs_s=0.25 * shape.layers,
        fp8_kv=card.fp8_kv,
    )
    step = StepTime.of(shape, tflops=card.tflops, tb_per_s=card.tb_per_s, kv_bytes_per_token=kv_bytes)
    return launcher, SimulatedLoader(noise=0.0, step=step)
