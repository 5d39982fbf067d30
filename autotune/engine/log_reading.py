"""A vLLM log read at rest, as `vtune read-log` shows it: why it failed, or what a good start says about capacity. Pure.

What failed is judged as in a trial (`first_failure`). A log at rest has no exit code and no clock, so whether an engine
hung is judged by where its log ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from autotune.engine.applied import not_applied
from autotune.engine.capacity_reading import CapacityReading, capacity_reading
from autotune.engine.failure import first_failure
from autotune.engine.failure_facts import estimated_device_gib, stated_device_gib
from autotune.engine.log_lines import message, unfolded
from autotune.engine.start_log import Stage, read_facts, stage_reached
from autotune.spec.measurement import StartFacts
from autotune.spec.verdict import EngineFailure

_BEGINNING = re.compile(r"non-default args|vLLM API server version|█ +version \d")
_NCCL = re.compile(r"\bnccl\b|\bRCCL\b|init_process_group|distributed_init_method")
_DIED = re.compile(
    r"EngineDeadError|EngineCore encountered|Engine core initialization failed|Failed core proc|died unexpectedly"
    r"|core dumped|Engine loop (?:is not running|has died)"
)
_STATS = re.compile(
    r"Avg generation throughput: (?P<speed>[\d.]+) tokens/.{0,400}?"
    r"Running: (?P<running>\d+) reqs, Waiting: (?P<waiting>\d+) reqs",
    re.DOTALL,
)
_QUALITY = re.compile(
    r"Using KV cache scaling factor 1\.0 for |without (?:calibrated|calibration) scal|accuracy (?:drop|loss|issue)"
)
_NO_LOG = "nothing in this text is known from a vLLM log"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """`failure` None: nothing says that it failed. `stage`: that of the failure, else the last one entered."""

    stage: Stage | str
    failure: EngineFailure | None
    facts: StartFacts
    capacity: CapacityReading | None
    warnings: tuple[str, ...]


def read_log(log: str, *, device_gib: float | None = None) -> LogReading:
    """One start (and run) of one engine. `device_gib`: its GPU's memory, where the log doesn't say."""
    text = unfolded(log)
    reached, facts = stage_reached(log), read_facts(log)
    device = stated_device_gib(text) or device_gib
    concerning = (line for line in text.splitlines() if _QUALITY.search(line))
    warnings = [line[:1000] for line in dict.fromkeys(map(message, concerning))]
    failure = first_failure(log, device_gib=device)
    if failure is not None and _of_a_request(failure, text):
        warnings.append(f"an error that the engine outlived: {failure.evidence}")
        failure = None
    if failure is None:
        failure = _hang(text, reached) or _ignored(text, reached)
    if failure is None and reached != "ready":
        unseen = reached == "imports" and facts == StartFacts()
        warnings.append(_NO_LOG if unseen else f"the log ends in stage {reached}: cut off, or still starting")
    return LogReading(
        stage=failure.stage if failure is not None else reached,
        failure=failure,
        facts=facts,
        capacity=capacity_reading(text, facts, device_gib=device, estimated_gib=estimated_device_gib(text)),
        warnings=tuple(warnings),
    )


def _of_a_request(failure: EngineFailure, text: str) -> bool:
    """A server answers a bad request with an error and goes on; running out of memory it doesn't outlive."""
    about_input = failure.cause == "unknown" or failure.cause.startswith(("config.", "env."))
    return failure.stage == "ready" and about_input and not _DIED.search(text)


def _hang(text: str, reached: Stage) -> EngineFailure | None:
    lines = [line for line in map(message, text.splitlines()) if line]
    if reached == "ready":
        last = next(reversed(list(_STATS.finditer("\n".join(lines)))), None)
        if last is None or float(last["speed"]) > 0 or int(last["running"]) > 0 or int(last["waiting"]) == 0:
            return None
        numbers = {"waiting_requests": float(last["waiting"])}
        evidence = " ".join(last[0].split())
        return EngineFailure(stage="ready", cause="hang.runtime", evidence=evidence, facts=numbers)
    waits_for_peers = reached == "distributed" and _NCCL.search(text) is not None
    # A piece out of the middle of a log says nothing about how it went on, unless it ends where starts do hang.
    if not waits_for_peers and not _BEGINNING.search(text):
        return None
    found = EngineFailure(stage=reached, cause="hang.startup", evidence=lines[-1][:1000])
    return replace(found, words={"waits_in": ("nccl_init",)}) if waits_for_peers else found


def _ignored(text: str, reached: Stage) -> EngineFailure | None:
    differing = not_applied(text)
    if not differing or reached != "ready":
        return None
    first = differing[0]
    return EngineFailure(
        stage="config",
        cause="config.not_applied",
        evidence=f"{first.flag} was given as {first.asked}, and the engine runs with {first.runs_with}",
        words={"not_applied": tuple(f"{one.flag}: {one.asked} -> {one.runs_with}" for one in differing)},
    )
