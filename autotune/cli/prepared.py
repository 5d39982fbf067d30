"""From arguments to everything that a search needs, the run's folder included."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune import __version__
from autotune.cli.dry_validation import validation_of
from autotune.engine.catalogue import read_catalogue
from autotune.engine.gpus import Gpu, all_gpus, visible
from autotune.engine.model_files import read_model_shape
from autotune.errors import EnvironmentProblem, UserError
from autotune.history.rundir import RunDir, RunHeader
from autotune.report.plan import Plan, plan
from autotune.run.options import SearchOptions
from autotune.spec.capacity import gpu_gib, server_defaults
from autotune.spec.catalogue import Catalogue
from autotune.spec.device import Capability, named_capability, read_capability
from autotune.spec.model import ModelShape
from autotune.spec.problem import Problem
from autotune.spec.space_file import Overrides, Sources, parse_problem, read_sources
from autotune.spec.units import duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    problem: Problem
    options: SearchOptions
    catalogue: Catalogue
    run: RunDir
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """Devices to run on, and the memory of one; None where that isn't known here (a cluster's, a CPU's)."""

    devices: int | None
    gpu_gib: float | None = None
    capability: Capability | None = None


def checked(
    space: str,
    *,
    workload: str | None,
    model: str | None,
    gpu: str | None,
    model_config: Path | None,
    vllm_python: Path | None,
    allow_quality_loss: bool,
    allow: Sequence[str],
    ask_vllm: bool,
) -> Plan:
    """What `search` would do, without a folder, an engine or a GPU. `ask_vllm`: whether vLLM itself validates points
    of the space."""
    catalogue = read_catalogue(vllm_python)
    problem = parse_problem(
        read_sources(space, workload),
        catalogue=catalogue,
        allow_quality_loss=allow_quality_loss,
        allow=allow,
        overrides=Overrides(model=model),
    )
    if gpu is not None and catalogue.platform == "cpu":
        problem = replace(problem, defaults={**problem.defaults, **server_defaults(_with_unit(gpu))})
    gpus = visible(all_gpus()) if gpu is None and catalogue.platform != "cpu" else ()
    made = plan(
        problem,
        catalogue,
        shape=_shape(problem, model_config),
        devices=len(gpus) or None,
        gpu_gib=given_gpu_gib(gpu) if gpu is not None else (gpus[0].total_gib if gpus else None),
        platform="cuda" if gpu is not None else None,
        capability=named_capability(gpu) if gpu is not None else _capability(gpus),
    )
    if not ask_vllm:
        return made
    said = validation_of(made, elsewhere=gpu is not None, gpus=len(gpus), model_config=model_config)
    return replace(made, validation=said)


def prepare_new(
    space: str,
    *,
    workload: str | None,
    out: Path | None,
    options: SearchOptions,
    overrides: Overrides,
    allow: Sequence[str],
    model_config: Path | None,
) -> Prepared:
    """Checks everything, then makes the run's folder. Raises UserError or EnvironmentProblem; nothing is left then."""
    catalogue = read_catalogue(options.vllm_python)
    options = replace(options, vllm_python=Path(catalogue.python), platform=catalogue.platform)
    sources = read_sources(space, workload)
    problem = parse_problem(
        sources, catalogue=catalogue, allow_quality_loss=options.allow_quality_loss, allow=allow, overrides=overrides
    )
    machine = _machine(options, problem)
    planned = _planned(problem, catalogue, options, machine, model_config)
    kept: dict[str, str | int | None] = {
        "model": overrides.model,
        "allow": ",".join(allow) or None,
        "devices": machine.devices,
        "compute_capability": "{}.{}".format(*machine.capability) if machine.capability else None,
    }
    kept["model_config"] = str(model_config) if model_config else None
    header = RunHeader(
        name=problem.space.name,
        seed=problem.seed,
        command=("vtune", *sys.argv[1:]),
        space_text=sources.space_text,
        workload_text=sources.workload_text,
        space_file=str(sources.space_file),
        workload_file=str(sources.workload_file),
        objectives=problem.objectives,
        slos=problem.slos,
        budget=problem.budget,
        started_at=time.time(),
        options=_scalars(options.to_json()) | kept,
        versions=_versions(catalogue),
    )
    folder = out or _default_folder(problem.space.name)
    try:
        run = RunDir.create(folder, header)
    except OSError as error:
        raise UserError(
            f"the run's folder can't be made: {error.strerror}", file=folder, remedy="choose another with --out"
        ) from None
    return Prepared(problem=planned.problem, options=options, catalogue=catalogue, run=run, plan=planned)


def prepare_resumed(folder: Path, *, overrides: Overrides, address: str | None) -> Prepared:
    """The run's own space, workload, seed and options; only budget and cluster may be given anew."""
    run = RunDir.open(folder)
    header = run.header()
    options = SearchOptions.from_json(header.options)
    if address is not None:
        options = replace(options, address=address)
    catalogue = read_catalogue(options.vllm_python)
    began_with = header.versions.get("vllm")
    if began_with not in (None, catalogue.vllm_version):
        raise UserError(
            f"this run was measured with vLLM {began_with}, and {catalogue.python} has {catalogue.vllm_version}: "
            "their results can't be mixed",
            file=run.header_file,
            remedy="start a new run, or put the other vLLM back",
        )
    sources = Sources(
        space_text=header.space_text,
        workload_text=header.workload_text,
        space_file=Path(header.space_file or "space"),
        workload_file=Path(header.workload_file or "workload"),
    )
    model, allow = header.options.get("model"), header.options.get("allow")
    problem = parse_problem(
        sources,
        catalogue=catalogue,
        allow_quality_loss=options.allow_quality_loss,
        allow=str(allow).split(",") if allow else (),
        overrides=Overrides(model=str(model) if model else None, seed=header.seed),
    )
    budget = header.budget
    if overrides.wall_s is not None or overrides.gpu_s is not None:
        budget = replace(budget, wall_s=overrides.wall_s, gpu_s=overrides.gpu_s)
    if overrides.trials is not None:
        budget = replace(budget, trials=overrides.trials)
    if budget != header.budget:
        run.update(budget=budget)
    given = header.options.get("model_config")
    planned = _planned(
        replace(problem, budget=budget), catalogue, options, _as_before(header), Path(str(given)) if given else None
    )
    return Prepared(problem=planned.problem, options=options, catalogue=catalogue, run=run, plan=planned)


def overridden(
    *, model: str | None, seed: int | None, trials: int | None, budget: str | None, gpu_budget: str | None
) -> Overrides:
    """Raises UserError for a time that can't be read."""
    return Overrides(
        model=model,
        seed=seed,
        trials=trials,
        wall_s=_time_s("--budget", budget),
        gpu_s=_time_s("--gpu-budget", gpu_budget),
    )


def _time_s(option: str, given: str | None) -> float | None:
    if given is None:
        return None
    try:
        seconds = duration_s(given)
    except ValueError as problem:
        raise UserError(str(problem), key=option, value=given, remedy=f'write {option} "30 min"') from None
    if seconds <= 0:
        raise UserError("a budget must be above 0", key=option, value=given, remedy=f'write {option} "30 min"')
    return seconds


def _machine(options: SearchOptions, problem: Problem) -> _Machine:
    if options.simulate:
        return _Machine(devices=options.simulated_gpus)
    if options.platform == "cpu" and (flag := problem.space.gpu_flag()) is not None:
        raise EnvironmentProblem(
            f"{problem.space_file}: this space is for GPUs (it has {flag}), and the vLLM of {options.vllm_python} is a "
            "CPU build. Run vtune where the GPUs are with --vllm-python naming their vLLM, or search a space for CPUs "
            "(tiny-cpu)"
        )
    if options.address is not None or options.platform == "cpu":  # CPU engines take turns, whatever their ranks
        return _Machine(devices=None)
    gpus = visible(all_gpus())
    if not gpus:
        raise EnvironmentProblem(
            "no GPU found on this machine. Run vtune where the GPUs are, join a cluster with --address, or name an "
            "interpreter with a CPU build of vLLM: --vllm-python PATH"
        )
    return _Machine(devices=len(gpus), gpu_gib=gpus[0].total_gib, capability=_capability(gpus))


def _capability(gpus: Sequence[Gpu]) -> Capability | None:
    """Of a machine's GPUs, which are taken to be alike."""
    return read_capability(gpus[0].compute_capability) if gpus else None


def _as_before(header: RunHeader) -> _Machine:
    """A resumed run must search the space that it began with, so what was taken out then is taken out again."""
    devices, capability = header.options.get("devices"), header.options.get("compute_capability")
    return _Machine(
        devices=devices if isinstance(devices, int) else None,
        capability=read_capability(capability) if isinstance(capability, str) else None,
    )


def _planned(
    problem: Problem, catalogue: Catalogue, options: SearchOptions, machine: _Machine, model_config: Path | None
) -> Plan:
    shape = None
    try:
        shape = _shape(problem, model_config)
    except EnvironmentProblem as error:
        if not options.simulate:  # a real engine couldn't load it either
            raise
        problem = replace(problem, notices=(*problem.notices, f"not judged by the model's shape: {error}"))
    return plan(
        problem,
        catalogue,
        shape=shape,
        devices=machine.devices,
        gpu_gib=machine.gpu_gib,
        capability=machine.capability,
    )


def _shape(problem: Problem, model_config: Path | None) -> ModelShape:
    """Raises UserError with the space's file: the model is named there."""
    try:
        return read_model_shape(problem.space.model, model_config=model_config)
    except UserError as error:
        if error.file is not None or model_config is not None:
            raise
        raise error.at(problem.space_file) from None


def given_gpu_gib(given: str) -> float:
    """`H200`, `80 GiB`, or GiB as a plain number."""
    return gpu_gib(_with_unit(given))


def _with_unit(given: str) -> str:
    return f"{given} GiB" if given.strip().replace(".", "", 1).isdigit() else given


def _default_folder(name: str) -> Path:
    """runs/<space>-<time>/, one that isn't there yet."""
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".-") or "run"
    stem = f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, count = Path("runs") / stem, 1
    while folder.exists():
        count += 1
        folder = Path("runs") / f"{stem}-{count}"
    return folder


def _scalars(values: Mapping[str, object]) -> dict[str, bool | int | float | str | None]:
    return {name: value for name, value in values.items() if isinstance(value, bool | int | float | str | None)}


def _versions(catalogue: Catalogue) -> dict[str, str]:
    return {
        "vtune": __version__,
        "vllm": catalogue.vllm_version,
        "vllm_distribution": catalogue.distribution,
        "platform": catalogue.platform,
    }
