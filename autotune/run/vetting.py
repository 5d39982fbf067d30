"""What the installed vLLM itself refuses isn't launched: it is asked about a candidate before its engine is started.

Asking costs milliseconds once vLLM is imported, a failed start most of a minute. vLLM judges by the machine it is on,
here the driver's; where it can't judge, or can't be asked, nothing is refused and the engine's own start decides.

The question is put between two steps of running trials, which take a driver that is silent for 20 s for dead
(`run.actor.SILENCE_S`). So vLLM is imported beside the search, nothing is asked before it is there, and an answer is
waited for only briefly.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from autotune.engine.model_files import resolve_model
from autotune.engine.validator import Refused, Unknown, Validator, Validity
from autotune.errors import EnvironmentProblem, UserError
from autotune.spec.config import EngineConfig

log = logging.getLogger(__name__)

_ANSWER_S = 4.0
_SHOWN = 3
_SENTENCE = 160


@dataclass(slots=True, kw_only=True)
class Vetting:
    """Answers are remembered: a sampler comes back to what it was refused. An `ask` that raises isn't asked again."""

    ask: Callable[[EngineConfig], Validity]
    ready: Callable[[], bool] = lambda: True
    """Whether asking won't keep anybody waiting."""
    _refused: dict[str, bool] = field(default_factory=dict)
    _reasons: Counter[str] = field(default_factory=Counter)
    _gone: bool = False

    def refuses(self, config: EngineConfig) -> bool:
        if self._gone or (config.key not in self._refused and not self.ready()):
            return False
        if config.key not in self._refused:
            try:
                answer = self.ask(config)
            except Exception:  # the boundary to Ray's controller: whatever it is, no candidate is to blame
                log.warning("candidates are launched without asking vLLM first", exc_info=True)
                self._gone = True
                return False
            self._refused[config.key] = isinstance(answer, Refused)
            if isinstance(answer, Refused):
                reason = f"{answer.cause}: {answer.evidence[:_SENTENCE]}"
                if reason not in self._reasons:
                    log.warning("vLLM itself refuses a candidate, which isn't launched: %s", reason)
                self._reasons[reason] += 1
        return self._refused[config.key]

    def says(self) -> str:
        """How many candidates were refused and why, in one sentence; empty where none was."""
        if not self._reasons:
            return ""
        count = self._reasons.total()
        shown = "; ".join(reason for reason, _ in self._reasons.most_common(_SHOWN))
        what = "1 candidate" if count == 1 else f"{count} candidates"
        return f"vLLM itself refused {what} before launch ({shown})"


@contextmanager
def vetting(python: Path, *, log_file: Path, env: dict[str, str], known_flags: frozenset[str]) -> Iterator[Vetting]:
    """Asks a process of its own, which imports vLLM meanwhile and is ended here."""
    with Validator(
        vllm_python=python, log=log_file, env=env, known_flags=known_flags, answer_timeout_s=_ANSWER_S
    ) as vllm:
        told: list[str] = []
        importing = threading.Thread(target=vllm.start, name="import-vllm", daemon=True)
        importing.start()

        def ask(config: EngineConfig) -> Validity:
            try:
                model = resolve_model(config.model, python)
            except (UserError, EnvironmentProblem) as error:  # a checkpoint that isn't here says nothing of its flags
                return Unknown(reason=str(error))
            answer = vllm.validate(config, model=model)
            if vllm.broken is not None and not told:
                told.append(vllm.broken)
                log.warning("candidates are launched without asking vLLM first: %s", vllm.broken)
            return answer

        yield Vetting(ask=ask, ready=lambda: not importing.is_alive())
