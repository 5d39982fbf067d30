"""Live settings of a running engine, from outside (`inside/live_settings.py` is the half inside vLLM).

The plugin travels as a folder in PYTHONPATH that looks like an installed package, so it works with a vLLM in another
environment, where vtune isn't (docs/design.md, 15).
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.engine import api
from autotune.spec.config import FlagValue

_log = logging.getLogger(__name__)
_SCRIPT = Path(__file__).parent / "inside" / "live_settings.py"
_NAME = "vtune_live_settings"
_PATH = "/vtune/live-settings"
_POLL_S = 0.05

ARGUMENTS = ("--middleware", f"{_NAME}.LiveSettings")
"""Command-line words that put the plugin's HTTP part into the API server."""

DRAIN_S = 2.0
"""An engine whose requests were cancelled is empty by then, or isn't used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """`settings` in effect; `caps`: what the engine was started with; `missing`: settings that this vLLM can't change
    while it runs, each with the reason."""

    settings: Mapping[str, FlagValue]
    caps: Mapping[str, FlagValue]
    missing: Mapping[str, str]
    running: int
    waiting: int
    block_size: int | None = None
    max_model_len: int | None = None
    took_ms: float = 0.0


class LiveRefused(Exception):
    """The engine doesn't take the change; nothing was changed. Says why."""


def inject(folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Writes the plugin into `folder` and returns the variables an engine needs to find and to heed it.

    Plugins that the user has installed stay as they are: VLLM_PLUGINS is only added to where it is set.
    """
    package = folder / "plugin"
    metadata = package / f"{_NAME}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (package / f"{_NAME}.py").write_bytes(_SCRIPT.read_bytes())
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{_NAME} = {_NAME}:register\n")
    path = os.pathsep.join(filter(None, (str(package), env.get("PYTHONPATH"))))
    found = {"PYTHONPATH": path, "VTUNE_LIVE_SETTINGS": "1"}
    if "VLLM_PLUGINS" in env:
        found["VLLM_PLUGINS"] = ",".join(filter(None, (env["VLLM_PLUGINS"], _NAME)))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """Of one engine that was started with the plugin."""

    port: int
    api_key: str = field(repr=False)

    def read(self) -> LiveState:
        """Raises LiveRefused where the plugin doesn't answer."""
        return self._ask("GET", None)

    def change(self, settings: Mapping[str, FlagValue], *, reset_prefix_cache: bool = False) -> LiveState:
        """Sets them between two steps of the engine and returns what is in effect then; all or nothing.

        Raises LiveRefused: as a cold start would, where one exceeds what the engine was started with, and where the
        engine isn't idle for what only an idle one can do.
        """
        found = self._ask("POST", {"set": dict(settings), "reset_prefix_cache": reset_prefix_cache})
        wrong = {
            name: found.settings.get(name) for name, value in settings.items() if found.settings.get(name) != value
        }
        if wrong:
            raise LiveRefused(f"the engine says {wrong} after they were set to something else")
        return found

    def change_when_idle(self, settings: Mapping[str, FlagValue], *, within_s: float = DRAIN_S) -> LiveState:
        """The same with an empty prefix cache, once no request runs or waits. Raises LiveRefused."""
        give_up_s = time.monotonic() + within_s
        while (now := self.read()).running or now.waiting:
            if time.monotonic() > give_up_s:
                raise LiveRefused(f"{now.running} requests still run and {now.waiting} wait after {within_s:g} s")
            time.sleep(_POLL_S)
        return self.change(settings, reset_prefix_cache=True)

    def retune(self, settings: Mapping[str, FlagValue]) -> str | None:
        """`Endpoint.retune`."""
        try:
            self.change_when_idle(settings)
        except LiveRefused as refused:
            return str(refused)
        return None

    def _ask(self, method: str, body: Mapping[str, Any] | None) -> LiveState:
        answer = api.ask(self.port, _PATH, method=method, body=body, api_key=self.api_key, timeout_s=30.0)
        if answer is None:
            raise LiveRefused("the engine doesn't answer")
        try:
            found = json.loads(answer[1])
            if answer[0] != 200:
                raise LiveRefused(str(found["error"]))
            return LiveState(**found)
        except (ValueError, KeyError, TypeError):
            raise LiveRefused(f"the engine has no live settings (it answers {answer[0]})") from None
