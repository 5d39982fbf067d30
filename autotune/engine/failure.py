"""Why an engine failed: its log's first specific cause, by stage. Pure.

Wordings move between versions, so rules look for key phrases; what a phrase means may depend on the stage it comes in.
The last line is never the cause ("Engine core initialization failed. See root cause above"). The classes, their
remedies and examples: docs/failures.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from autotune.engine.bounds import implied_bounds
from autotune.engine.failure_facts import facts_of, shortfall
from autotune.engine.failure_rule import OOM
from autotune.engine.failure_rules import RULES
from autotune.engine.log_lines import LogLine, log_lines, unfolded
from autotune.engine.start_log import Stage, stage_of_reading
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
    "config.conflict": "config",
    "config.unsupported": "config",
    "infra.cache": "compile",
    "infra.gpu_busy": "distributed",
    "infra.port_race": "distributed",
    "infra.profiling_race": "profiling",
    "oom.sampler_warmup": "warm_up",
}
_FRAMES: tuple[tuple[Stage, re.Pattern[str]], ...] = (
    ("graphs", re.compile(r"\b(?:capture_model|capture_end|capture_begin|_capture_cudagraphs|CUDAGraph)\b")),
    ("warm_up", re.compile(r"\b_dummy_sampler_run\b")),
    ("profiling", re.compile(r"\b(?:profile_run|determine_available_memory|determine_num_available_blocks)\b")),
    ("weights", re.compile(r"\b(?:load_model|load_weights|create_weights|initialize_model)\b")),
)
"""Functions of vLLM in a traceback, for an out-of-memory error in a log that begins too late to show its stage."""

_ANY_ERROR = re.compile(
    r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Exit|Interrupt|Assertion)\w*)(?::|$)|^\S*: error: |^Fatal |core dumped"
)
_WRAPPERS = re.compile(
    r"Engine core initialization failed|Failed core proc|WorkerProc (?:hit an exception|initialization failed)"
    r"|See (?:root cause|stack trace)|EngineDeadError|EngineCore (?:failed to start|encountered)|validation errors? for"
    r"|leaked (?:semaphore|shared_memory)|SystemExit|KeyboardInterrupt|CancelledError|BrokenPipeError"
)
_CODE = re.compile(r'File "|raise |return |assert |[\w.]+ = |f?["\']|\^+$|~*\^')
_SPECULATION = re.compile(r"config/speculative\.py|speculative_config|draft_model_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cause:
    cause: str
    stage: Stage
    line: str
    match: re.Match[str] | None
    drafting: bool
    """Whether the traceback so far leads through the draft model's configuration."""


def _causes(log: str) -> Iterator[_Cause]:
    """Every line that states a cause, in the log's order; the vague ones (class "unknown") too."""
    stage: Stage = "imports"
    frame: Stage | None = None
    drafting = False
    for line in log_lines(log):
        stage = stage_of_reading(line.readings) or stage
        if line.harmless:
            continue
        drafting = drafting or _SPECULATION.search(line.readings[0]) is not None
        frame = next((at for at, pattern in _FRAMES if pattern.search(line.readings[0])), frame)
        cause, message, match = _stated(line)
        if cause:
            at = frame if cause == OOM and frame is not None and stage == "imports" else stage
            yield _Cause(cause=cause, stage=at, line=message, match=match, drafting=drafting)


def _stated(line: LogLine) -> tuple[str, str, re.Match[str] | None]:
    """Class ("" for none), message and match of the reading that fits best."""
    found: list[tuple[tuple[int, int], str, re.Match[str]]] = []
    vague = ""
    for text in line.messages:
        if not text or _WRAPPERS.search(text):
            continue
        # A traceback's source line may quote the message it is about to raise.
        if _CODE.match(text) or "import " in text[:12]:
            continue
        for index, rule in enumerate(RULES):
            match = rule.pattern.search(text)
            if match:
                read = sum(value is not None for value in match.groups())
                found.append(((index, -read), text, match))
                break
        else:
            vague = vague or (text if _ANY_ERROR.match(text) else "")
    if found:
        (index, _), text, match = min(found, key=lambda one: one[0])
        return RULES[index].cause, text, match
    return ("unknown" if vague else "", vague, None)


def first_failure(log: str, *, device_gib: float | None = None) -> EngineFailure | None:
    """The first specific cause in the log, else the first vague one, else None: it says nothing of a failure.

    `device_gib`: the memory of one GPU, for logs that don't say.
    """
    causes = list(_causes(log))
    found = next((c for c in causes if c.cause != "unknown"), causes[0] if causes else None)
    if found is None:
        return None
    if found.cause == OOM:
        # torch's own words come first; vLLM's, raised from them, may say what they were about.
        found = next((c for c in causes if c.cause == "oom.sampler_warmup"), found)
    cause = _OOM_BY_STAGE[found.stage] if found.cause == OOM else found.cause
    stage = _STAGE_IMPLIED.get(cause, found.stage) if found.stage == "imports" else found.stage
    numbers, words = facts_of(found.match, unfolded(log), device_gib=device_gib)
    if found.drafting and "pipeline" in words:
        words["with"] = ("speculative-config",)
    return EngineFailure(
        stage=stage,
        cause=cause,
        evidence=found.line[:1000],
        shortfall=shortfall(numbers),
        facts=numbers,
        words=words,
        bounds=implied_bounds(cause, numbers, words),
    )


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
