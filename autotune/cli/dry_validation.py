"""Asking the installed vLLM about a plan, where its answers mean something."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from autotune.engine.model_files import resolve_model
from autotune.engine.validator import Unknown, Validator, Validity
from autotune.errors import EnvironmentProblem, UserError
from autotune.report.plan import Plan
from autotune.report.validation import Validation, validated
from autotune.spec.config import EngineConfig


def validation_of(made: Plan, *, elsewhere: bool, gpus: int, model_config: Path | None) -> Validation:
    """`elsewhere`: the plan is for another machine. `gpus`: how many are here. `model_config`: as `--model-config`.

    Takes 8 s or more; ends the process that it starts.
    """
    why = _no_use(made, elsewhere=elsewhere, gpus=gpus)
    return _asked(made, model_config) if why is None else Validation(not_asked=why)


def _no_use(made: Plan, *, elsewhere: bool, gpus: int) -> str | None:
    """Why this vLLM's answers would say nothing about the plan: it judges by the machine that it is on."""
    if elsewhere:
        return "it judges by the machine that it is on, and this plan is for another (--gpu)"
    if made.catalogue.platform != "cpu":
        return None if gpus else "it is a build for GPUs, and none is here"
    flag = made.problem.space.gpu_flag()
    return f"it is a CPU build, and this space is for GPUs (it has {flag})" if flag is not None else None


def _asked(made: Plan, model_config: Path | None) -> Validation:
    catalogue, own = made.catalogue, made.problem.space.model
    with (
        tempfile.TemporaryDirectory(prefix="vtune-check-") as folder,
        Validator(
            vllm_python=Path(catalogue.python),
            log=Path(folder) / "validator.log",
            env=os.environ,
            known_flags=frozenset(catalogue.flags) | catalogue.server_flags,
        ) as vllm,
    ):
        stand_in = _stand_in(model_config, Path(folder)) if model_config is not None else None

        def ask(config: EngineConfig) -> Validity:
            try:
                model = resolve_model(config.model) if stand_in is None or config.model != own else stand_in
            except (UserError, EnvironmentProblem) as error:  # a checkpoint that isn't here says nothing of its flags
                return Unknown(reason=str(error))
            return vllm.validate(config, model=model)

        found = validated(made.problem, ask)
        return replace(found, import_s=vllm.import_s)


def _stand_in(model_config: Path, folder: Path) -> str:
    """A folder with nothing but the model's config.json: vLLM reads no more to build its configuration."""
    given = model_config / "config.json" if model_config.is_dir() else model_config
    made = folder / "model"
    made.mkdir()
    shutil.copy(given, made / "config.json")
    return str(made)
