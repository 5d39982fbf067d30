"""What the installed vLLM itself says of a configuration before anything is launched (`inside/validator.py`).

It builds vLLM's whole configuration from the very command line an engine would get, and stops there: some milliseconds
a candidate in a process that stays up. It doesn't load weights, profile memory or choose kernels, so an accepted
candidate may still fail to start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.engine.command import engine_arguments, inherited_environment
from autotune.engine.failure import first_failure
from autotune.engine.helper import Helper, HelperEnded
from autotune.errors import UserError
from autotune.spec.config import EngineConfig, FlagValue

_log = logging.getLogger(__name__)
_SCRIPT = Path(__file__).parent / "inside" / "validator.py"

_PORT = 8000  # part of the command line; nothing is bound
_MOST_LOST = 2
_BUSY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Valid:
    """`effective`: values that vLLM would use, its own choices included, as far as this version shows them."""

    effective: Mapping[str, FlagValue]
    took_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """`cause`: config.invalid, .unsupported or .conflict (docs/failures.md). `evidence`: vLLM's sentence."""

    cause: str
    evidence: str
    took_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Nothing is known of the candidate: the helper died or hung, or vLLM failed at something else."""

    reason: str


Validity = Valid | Refused | Unknown


@dataclass(slots=True, kw_only=True)
class Validator:
    """One helper process, started with the first question (importing vLLM: 8 s or more) and ended by `close()`, by
    leaving the context, or with its owner.

    A helper that dies or hangs says nothing about the candidate it was asked about; it is started again, and after
    `_MOST_LOST` of them no more is asked. `known_flags`: as `command.engine_arguments` takes them.
    """

    vllm_python: Path
    log: Path
    env: Mapping[str, str]
    known_flags: Collection[str] | None = None
    import_timeout_s: float = 300.0
    answer_timeout_s: float = 20.0
    script: Path = _SCRIPT
    broken: str | None = None
    """Why it can't be asked; None as far as is known."""
    import_s: float | None = None
    _helper: Helper | None = None
    _lost: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Validator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for no answer, and for no import."""
        if not self._lock.acquire(timeout=_BUSY_S):
            if (helper := self._helper) is not None:
                helper.kill()
            self._lock.acquire()
        try:
            self.broken = self.broken or "it was closed"
            self._end(grace_s=5.0)
        finally:
            self._lock.release()

    def start(self) -> None:
        """Starts the process and waits until it has imported vLLM; what goes wrong is told by the first answer."""
        with self._lock:
            try:
                self._ready()
            except (HelperEnded, OSError) as error:
                self._end(grace_s=0.0)
                self.broken = f"vLLM can't be asked: {error}; see {self.log}"

    def validate(self, config: EngineConfig, *, model: str | None = None) -> Validity:
        """`model`: instead of the configuration's own, a folder with a config.json or a hub name (see
        `model_files.resolve_model`). Never raises for what vLLM or the helper does."""
        try:
            arguments = engine_arguments(config, port=_PORT, known_flags=self.known_flags)
        except UserError as error:
            return Unknown(reason=str(error))
        if model is not None:
            arguments[arguments.index("--model") + 1] = model
        with self._lock:
            try:
                answer = self._asked({"argv": arguments, "env": dict(config.env)})
            except HelperEnded as ended:
                self._lost += 1
                self._end(grace_s=0.0)
                reason = f"the process that asks vLLM is lost: {ended}; see {self.log}"
                if self._lost >= _MOST_LOST:
                    self.broken = reason
                return Unknown(reason=reason)
            except OSError as error:
                self.broken = f"vLLM can't be asked: {error}"
                return Unknown(reason=self.broken)
        return Unknown(reason=answer) if isinstance(answer, str) else judged(answer)

    def _asked(self, question: Mapping[str, Any]) -> dict[str, Any] | str:
        """The answer, or why there is none. Raises HelperEnded, also for one that doesn't answer in time; OSError."""
        if self.broken is not None:
            return self.broken
        helper = self._ready()
        helper.send(question)
        answer = helper.reply(self.answer_timeout_s)
        if answer is None:
            raise HelperEnded(f"no answer within {self.answer_timeout_s:.0f} s")
        return answer

    def _ready(self) -> Helper:
        """The process, once it has imported vLLM. Raises as `_asked` does."""
        if self._helper is None:
            # A candidate's notices are of no interest, and the log would grow with each.
            environment = {
                "VLLM_LOGGING_LEVEL": "ERROR",
                "VLLM_NO_USAGE_STATS": "1",
                **inherited_environment(self.env),
            }
            self._helper = Helper.start(self.script, python=self.vllm_python, log=self.log, env=environment)
            ready = self._helper.reply(self.import_timeout_s)
            if ready is None:
                raise HelperEnded(f"importing vLLM took more than {self.import_timeout_s:.0f} s")
            self.import_s = float(ready["ready"])
            _log.info("asking vLLM itself about candidates; importing it took %.1f s", self.import_s)
        return self._helper

    def _end(self, *, grace_s: float) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.end(grace_s=grace_s)


def judged(answer: Mapping[str, Any]) -> Validity:
    """Only an error that vLLM words as being about the configuration is evidence against it."""
    took_ms = float(answer.get("took_ms", 0.0))
    if answer.get("ok"):
        return Valid(effective=answer.get("effective", {}), took_ms=took_ms)
    text = str(answer.get("error", ""))
    failure = first_failure(text)
    if failure is not None and failure.cause.startswith("config."):
        return Refused(cause=failure.cause, evidence=failure.evidence, took_ms=took_ms)
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["an answer without a text"]
    return Unknown(reason=f"vLLM failed, not clearly because of the configuration: {lines[-1][:500]}")
