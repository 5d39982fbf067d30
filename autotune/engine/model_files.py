"""Where a model's files are: the shape from its config.json, and the built-in tiny model."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from autotune.engine import tiny_model
from autotune.engine.catalogue import cache_folder
from autotune.errors import EnvironmentProblem, UserError
from autotune.spec.model import ModelShape, parse_model_shape

log = logging.getLogger(__name__)

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_OFFLINE_ADVICE = "give its config.json with --model-config PATH"


def resolve_model(model: str, vllm_python: Path | None = None) -> str:
    """The name or folder that vLLM can load: `builtin:tiny` is made under the cache folder, a local folder becomes an
    absolute path, a hub name stays. Raises UserError for a folder that isn't there.

    `vllm_python` isn't needed for any model that there is today.
    """
    del vllm_python
    if model == tiny_model.NAME:
        try:
            return str(tiny_model.make_tiny_model(cache_folder() / "models"))
        except OSError as problem:
            raise EnvironmentProblem(
                f"the built-in model can't be written to {cache_folder()}: {problem.strerror}. Set XDG_CACHE_HOME to a "
                "folder that can be written"
            ) from problem
    if model.startswith("builtin:"):
        raise UserError(
            "there is no such built-in model", key="model", value=model, remedy=f"the only one is {tiny_model.NAME}"
        )
    folder = _local(model)
    return model if folder is None else str(folder)


def read_model_shape(model: str, *, model_config: Path | None = None) -> ModelShape:
    """From `model_config` (a config.json or the folder with it) where given, a local folder, the built-in model, the
    Hugging Face cache, or the hub.

    Raises UserError for what isn't there or isn't a model, EnvironmentProblem when the hub can't be reached.
    """
    if model_config is not None:
        path = model_config / "config.json" if model_config.is_dir() else model_config
        return parse_model_shape(_json(path, key="--model-config"), name=model, weight_bytes=_counted(path.parent))
    if model == tiny_model.NAME:
        return parse_model_shape(tiny_model.config(), name=model)
    folder = _local(model) or _cached(model)
    if folder is not None:
        path = folder / "config.json"
        return parse_model_shape(_json(path, key="model"), name=model, weight_bytes=_counted(folder))
    return parse_model_shape(_from_hub(model), name=model)


def _local(model: str) -> Path | None:
    """The folder, where `model` is a path. A hub name is `owner/name` and may happen to be a folder as well."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path.absolute()
    if model.startswith(("/", "./", "../", "~")) or model.count("/") > 1:
        raise UserError(
            "there is no such model folder",
            key="model",
            value=model,
            remedy="give a folder with a config.json, or a hub name such as Qwen/Qwen2.5-7B-Instruct",
        )
    return None


def _json(path: Path, *, key: str) -> Mapping[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            "there is no config.json here", file=path, key=key, remedy="give the folder that holds the model's files"
        ) from None
    except (OSError, ValueError) as problem:
        raise UserError(
            f"this can't be read as JSON: {problem}", file=path, key=key, remedy="download the file again"
        ) from None
    if not isinstance(found, dict):
        raise UserError("this isn't a model's config.json", file=path, key=key, remedy="it must be a JSON object")
    return found


def _counted(folder: Path) -> int | None:
    """The checkpoint's own count of its bytes; for one file its size."""
    for name in _INDEXES:
        try:
            total = json.loads((folder / name).read_text(encoding="utf-8"))["metadata"]["total_size"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(total, int | float):
            return int(total)
    try:
        return (folder / "model.safetensors").stat().st_size
    except OSError:
        return None


def _hub_cache() -> Path:
    """As huggingface_hub finds it (HF_HUB_CACHE, HF_HOME)."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache)
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(home) / "hub"


def _cached(model: str) -> Path | None:
    """The newest snapshot of a hub model that was downloaded before and has its config.json."""
    snapshots = _hub_cache() / f"models--{model.replace('/', '--')}" / "snapshots"
    found = [path.parent for path in snapshots.glob("*/config.json")]
    return max(found, key=lambda folder: folder.stat().st_mtime, default=None)


def _from_hub(model: str) -> Mapping[str, object]:
    unreachable = f"the config.json of {model} isn't on this machine and can't be fetched"
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError
    except ImportError:
        raise EnvironmentProblem(
            f"{unreachable}: huggingface_hub isn't installed. {_OFFLINE_ADVICE.capitalize()}"
        ) from None
    no_such = UserError(
        "the hub has no such model, or it isn't public",
        key="model",
        value=model,
        remedy=f"check the name, log in with `hf auth login`, or {_OFFLINE_ADVICE}",
    )
    try:
        return _json(Path(hf_hub_download(model, "config.json")), key="model")
    except (RepositoryNotFoundError, GatedRepoError, HFValidationError):
        raise no_such from None
    except HfHubHTTPError as problem:
        status = getattr(problem.response, "status_code", None)
        if status in (401, 403, 404):
            raise no_such from None
        raise EnvironmentProblem(
            f"{unreachable}: the hub answers {status}. {_OFFLINE_ADVICE.capitalize()}"
        ) from problem
    except UserError:
        raise
    except Exception as problem:  # noqa: BLE001 - requests, httpx or the OS, by version: all mean "not reached"
        log.info("hub: %r", problem)
        raise EnvironmentProblem(f"{unreachable}: the hub is out of reach. {_OFFLINE_ADVICE.capitalize()}") from problem
