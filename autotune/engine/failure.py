"""Why an engine failed: its log's first specific cause, by stage. Pure.

Wordings move between versions, so rules look for key phrases; what a phrase means may depend on the stage it comes in.
The last line is never the cause ("Engine core initialization failed. See root cause above"). The classes, their
remedies and examples: docs/failures.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from autotune.engine.failure_rules import OOM, RULES
from autotune.engine.start_log import Stage, stage_of_line
from autotune.spec.verdict import EngineFailure

_OOM_BY_STAGE: Mapping[Stage, str] = {
    "imports": "oom.weights",
    "config": "oom.weights",
    "distributed": "oom.weights",
    "weights": "oom.weights",
    "compile": "oom.profiling",
    "profiling": "oom.profiling",
    "kv_cache": "oom.profiling",
    "graphs": "oom.graph_capture",
    "warm_up": "oom.sampler_warmup",
    "ready": "oom.runtime",
}

# For a log that begins too late to show it.
_STAGE_IMPLIED: Mapping[str, Stage] = {
    "capacity.kv_too_small": "kv_cache",
    "capacity.no_kv_blocks": "kv_cache",
    "capacity.state_blocks": "graphs",
    "oom.sampler_warmup": "warm_up",
    "infra.gpu_busy": "distributed",
}

_PREFIXES = re.compile(
    r"^(?:"
    r"\s*\d+\.\d\d(?= )|"  # seconds since the start
    r"\s*\d\d:\d\d:\d\d(?:[.,]\d+)?(?= )|"
    r"\s*\((?:EngineCore|APIServer|ApiServer|Worker|VllmWorker|Vllm|Ray|raylet|pid)[^)]*\)|"
    r"\s*\[?(?:ERROR|CRITICAL)\b(?:\s+\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)?\]?:?|"
    r"\s*\[[\w./-]+\.py:\d+\]|"
    r"\s*\[rank\d+\]:?"
    r")+\s*"
)
_HARMLESS = re.compile(r"\b(?:WARNING|INFO|DEBUG)\b(?::?\s|\s*\[)|Warning: ")
_ANY_ERROR = re.compile(
    r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Exit|Interrupt|Assertion)\w*)(?::|$)|^\S*: error: |^Fatal |core dumped"
)
_WRAPPERS = re.compile(
    r"Engine core initialization failed|Failed core proc|WorkerProc (?:hit an exception|initialization failed)"
    r"|See (?:root cause|stack trace)|EngineDeadError|EngineCore (?:failed to start|encountered)|validation errors? for"
    r"|leaked (?:semaphore|shared_memory)|SystemExit|KeyboardInterrupt|CancelledError|BrokenPipeError"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cause:
    cause: str
    stage: Stage
    line: str
    match: re.Match[str] | None


def _causes(log: str) -> Iterator[_Cause]:
    """Every line that states a cause, in the log's order; the vague ones (class "unknown") too."""
    stage: Stage = "imports"
    for raw in log.splitlines():
        stage = stage_of_line(raw) or stage
        if _HARMLESS.search(raw[:120]):
            continue
        line = _PREFIXES.sub("", raw).strip()
        if not line or _WRAPPERS.search(line):
            continue
        for rule in RULES:
            match = rule.pattern.search(line)
            if match and not _is_code(line):
                yield _Cause(cause=rule.cause, stage=stage, line=line, match=match)
                break
        else:
            if _ANY_ERROR.match(line):
                yield _Cause(cause="unknown", stage=stage, line=line, match=None)


def _is_code(line: str) -> bool:
    """A traceback's source line may quote the message it is about to raise."""
    return bool(re.match(r'File "|raise |return |assert |[\w.]+ = |f?["\']|\^+$|~*\^', line)) or "import " in line[:12]


def first_failure(log: str, *, device_gib: float | None = None) -> EngineFailure | None:
    """The first specific cause in the log, else the first vague one, else None: it says nothing of a failure."""
    causes = list(_causes(log))
    found = next((c for c in causes if c.cause != "unknown"), causes[0] if causes else None)
    if found is None:
        return None
    facts = _facts(found, log)
    cause = _OOM_BY_STAGE[found.stage] if found.cause == OOM else found.cause
    if device_gib is not None:
        facts.setdefault("device_gib", device_gib)
    stage = _STAGE_IMPLIED.get(cause, found.stage) if found.stage == "imports" else found.stage
    return EngineFailure(stage=stage, cause=cause, evidence=found.line[:1000], shortfall=_shortfall(facts), facts=facts)


def classify(log: str, *, exit_code: int | None, stage: str, device_gib: float | None = None) -> EngineFailure:
    """The failure of an engine that has ended with `exit_code` (negative: by that signal) in `stage`."""
    found = first_failure(log, device_gib=device_gib)
    if found is not None and not (found.cause == "unknown" and exit_code == -9):
        return replace(found, exit_code=exit_code)
    if exit_code == -9:
        # Nobody else sends it: vtune's own SIGKILL comes only after an engine has been given up.
        evidence = "killed by SIGKILL with nothing in its log: most likely the kernel, out of host memory"
        return EngineFailure(stage=stage, cause="infra.host_oom", evidence=evidence, exit_code=exit_code)
    lines = [line for line in log.splitlines() if line.strip()]
    evidence = lines[-1].strip()[:1000] if lines else "an empty log"
    return EngineFailure(stage=stage, cause="unknown", evidence=evidence, exit_code=exit_code)


_IN_GIB = {"KiB": 1 / 1024**2, "MiB": 1 / 1024, "GiB": 1.0}
_LOGGED_KV = re.compile(r"Available KV cache memory: (-?[\d.]+) GiB")
_DEVICE = re.compile(
    r"total capacity of ([\d.]+) GiB|\([\d.]+/([\d.]+)\) GiB for KV cache|\([\d.]+/([\d.]+) GiB\) on startup"
)


def _facts(found: _Cause, log: str) -> dict[str, float]:
    facts: dict[str, float] = {}
    if found.match is not None:
        for name, text in found.match.groupdict().items():
            if text is None:
                continue
            match name:
                case "tried" | "free":
                    number, unit = text.split()
                    facts[f"{name}_gib"] = float(number) * _IN_GIB[unit]
                case _:
                    facts[name] = float(text)
    kv = _LOGGED_KV.findall(log)
    if kv:
        facts.setdefault("available_gib", min(float(value) for value in kv))
    device = _DEVICE.search(log)
    if device:
        facts.setdefault("device_gib", float(next(value for value in device.groups() if value)))
    if "needed_gib" not in facts and facts.get("available_gib", 0) > 0 and facts.get("kv_cache_tokens"):
        # The oldest wording of kv_too_small counts tokens only.
        facts["needed_gib"] = facts["available_gib"] * facts["max_model_len"] / facts["kv_cache_tokens"]
    return facts


def _shortfall(facts: Mapping[str, float]) -> float:
    """Missing GiB / device GiB in [0, 1]; 0 when either isn't known."""
    device_gib = facts.get("device_gib")
    if not device_gib or "wanted_gib" in facts:
        return 0.0
    if "tried_gib" in facts and "free_gib" in facts:
        missing_gib = facts["tried_gib"] - facts["free_gib"]
    elif "available_gib" in facts:
        missing_gib = facts.get("needed_gib", 0.0) - facts["available_gib"]
        if "needed_gib" not in facts and facts["available_gib"] > 0:
            return 0.0
    else:
        return 0.0
    return min(max(missing_gib / device_gib, 0.0), 1.0)
