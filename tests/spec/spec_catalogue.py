"""A small catalogue in the shape of vLLM 0.32's, and texts of a small space and workload, for tests of `spec`."""

from __future__ import annotations

from pathlib import Path

from autotune.spec.catalogue import Catalogue
from autotune.spec.flag import Flag
from autotune.spec.problem import Problem
from autotune.spec.space_file import Overrides, Sources, parse_problem

WORKLOAD = """
name: w
requests: {prompt_tokens: 100, output_tokens: {uniform: [10, 20]}}
rungs: [{name: r, concurrency: 4, requests: 100}]
"""

SPACE = """
name: s
model: m
workload: w.yaml
fixed: {max-model-len: from-workload}
search:
  max-num-seqs: [4, 8, 16]
  max-num-batched-tokens: {min: 128, max: 1024, multiple_of: 128}
objectives: {output_tok_per_s_per_gpu: maximize, ttft_p99: minimize}
slos: {ttft_p99: 2 s}
"""


def small_catalogue() -> Catalogue:
    def flag(name: str, kind: str, default: object = None, **more: object) -> Flag:
        return Flag(name=name, kind=kind, default=default, **more)  # type: ignore[arg-type]

    flags = [
        flag("max-num-seqs", "int", 128, nullable=True),
        flag("max-num-batched-tokens", "int", 2048, human=True),
        flag("max-model-len", "int", human=True, auto=True),
        flag("long-prefill-token-threshold", "int", 0),
        flag("enable-chunked-prefill", "bool", True),
        flag("enable-prefix-caching", "bool", True),
        flag("enforce-eager", "bool", False),
        flag("disable-log-stats", "bool", False, negatable=False),
        flag("gpu-memory-utilization", "float", 0.92, aliases=("device-memory-utilization",)),
        flag("kv-cache-memory-bytes", "int", human=True),
        flag("kv-cache-dtype", "str", "auto", choices=("auto", "fp8", "fp8_e5m2")),
        flag("quantization", "str", choices=("fp8", "awq", "gptq"), nullable=True),
        flag("dtype", "str", "auto", choices=("auto", "bfloat16", "float16")),
        flag("tensor-parallel-size", "int", 1, aliases=("tp",)),
        flag("pipeline-parallel-size", "int", 1, aliases=("pp",)),
        flag("block-size", "int", 128),
        flag("max-cudagraph-capture-size", "int"),
        flag("cudagraph-capture-sizes", "list"),
        flag("speculative-config", "json", nullable=True),
        flag(
            "compilation-config",
            "json",
            keys={
                "cudagraph_mode": flag(
                    "cudagraph_mode",
                    "str",
                    "FULL_AND_PIECEWISE",
                    choices=("NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"),
                ),
                "mode": flag("mode", "int", 3),
                "pass_config": flag(
                    "pass_config", "json", keys={"fuse_norm_quant": flag("fuse_norm_quant", "bool", False)}
                ),
            },
        ),
    ]
    return Catalogue(
        vllm_version="0.32.0",
        platform="cpu",
        python="/usr/bin/python3",
        flags={one.name: one for one in flags},
        server_flags=frozenset({"port", "host", "api-key", "chat-template", "ssl-certfile"}),
    )


def sources(space: str = SPACE, workload: str = WORKLOAD) -> Sources:
    return Sources(space_text=space, workload_text=workload, space_file=Path("s.yaml"), workload_file=Path("w.yaml"))


def problem(
    space: str = SPACE,
    workload: str = WORKLOAD,
    *,
    allow_quality_loss: bool = False,
    allow: tuple[str, ...] = (),
    overrides: Overrides | None = None,
) -> Problem:
    return parse_problem(
        sources(space, workload),
        catalogue=small_catalogue(),
        allow_quality_loss=allow_quality_loss,
        allow=allow,
        overrides=overrides,
    )


def with_lines(*lines: str, drop: tuple[str, ...] = ()) -> str:
    """SPACE without the top-level keys in `drop`, and with `lines` added."""
    kept: list[str] = []
    dropping = False
    for line in SPACE.splitlines():
        if line and not line.startswith(" "):
            dropping = line.partition(":")[0] in drop
        if not dropping:
            kept.append(line)
    return "\n".join([*kept, *lines]) + "\n"
