"""Where a model's files are: the shape from its config.json, and the built-in tiny model."""

from __future__ import annotations

import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from autotune.engine import tiny_model
from autotune.engine.catalogue import cache_folder
from autotune.errors import EnvironmentProblem, UserError
from autotune.spec.model import ModelShape, parse_model_shape

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_ADVICE = "give its config.json with --model-config PATH"
_HUB_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?", re.ASCII)
_HUB_TIMEOUT_S = 10


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
    """One plain request, without the hub client's half minute of retries; it is asked for models behind a login."""
    unreachable = f"the config.json of {model} isn't on this machine and can't be fetched"
    if not _HUB_NAME.fullmatch(model):
        raise _no_such(model)
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        raise EnvironmentProblem(f"{unreachable}: HF_HUB_OFFLINE is set. G{_ADVICE[1:]}")
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    url = f"{hub}/{model}/resolve/main/config.json"
    if not url.startswith(("https://", "http://")):
        raise UserError("this is no address", key="HF_ENDPOINT", value=hub, remedy="write https://...")
    try:
        with urllib.request.urlopen(url, timeout=_HUB_TIMEOUT_S) as answer:  # noqa: S310 - checked above
            found = json.loads(answer.read())
    except urllib.error.HTTPError as problem:
        problem.close()
        if problem.code in (401, 403):
            return _with_login(model)
        if problem.code == 404:
            raise _no_such(model) from None
        raise EnvironmentProblem(f"{unreachable}: the hub answers {problem.code}. G{_ADVICE[1:]}") from None
    except (OSError, http.client.HTTPException, ValueError) as problem:
        raise EnvironmentProblem(f"{unreachable}: {problem}. G{_ADVICE[1:]}") from None
    if not isinstance(found, dict):
        raise _no_such(model)
    return found


def _with_login(model: str) -> Mapping[str, object]:
    """The hub answers 401 both for what doesn't exist and for what asks for a login."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise _no_such(model) from None
    try:
        return _json(Path(hf_hub_download(model, "config.json")), key="model")
    except HfHubHTTPError:
        raise _no_such(model) from None


def _no_such(model: str) -> UserError:
    return UserError(
        "the hub has no such model, or shows it only after a login",
        key="model",
        value=model,
        remedy=f"check the name, log in with `hf auth login`, or {_ADVICE}",
    )
