"""Objectives, SLOs and budget, from what a space file says. Names carry no unit there and values do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal

from autotune.spec import units
from autotune.spec.flag import nearest
from autotune.spec.measurement import METRICS
from autotune.spec.objective import Budget, Objective, Slo
from autotune.spec.yaml_text import Document

Better = Literal["higher", "lower"]

_HIGHER = ("tok_per_s", "requests_per_s", "goodput", "cached_prompt_share", "max_rate_within_slo")
_LOWER = ("ttft", "tpot", "itl", "e2e", "failed_share", "degenerate_share", "preemptions", "send_lateness", "waiting")
_LIMIT = re.compile(r"\s*(<=|>=|<|>|≤|≥)?\s*(.+?)\s*", re.DOTALL)

NAMES: Mapping[str, str] = {metric.removesuffix("_ms"): metric for metric in METRICS}
"""As YAML has it -> as the columns have it (`ttft_p99` -> `ttft_p99_ms`)."""


def better(metric: str) -> Better | None:
    """Which way a metric improves; None where neither is better in itself (running_mean)."""
    if any(part in metric for part in _HIGHER):
        return "higher"
    return "lower" if any(part in metric for part in _LOWER) else None


def parse_objectives(given: Mapping[str, object], document: Document) -> tuple[Objective, ...]:
    """At least two, in the order given: the first is the one that `best` is best in."""
    found: list[Objective] = []
    for name, direction in given.items():
        metric = _metric(name, document, "objectives", name)
        if direction not in ("maximize", "minimize"):
            raise document.error(
                "a direction is maximize or minimize",
                "objectives",
                name,
                value=direction,
                remedy=f"write {_direction(metric) or 'maximize or minimize'}",
            )
        right = _direction(metric)
        if right is not None and direction != right:
            raise document.error(
                f"{name} is better when it is {better(metric)}",
                "objectives",
                name,
                value=direction,
                remedy=f"write {right}",
            )
        found.append(Objective(metric=metric, direction="maximize" if direction == "maximize" else "minimize"))
    if len(found) < 2:
        raise document.error(
            "a search weighs at least two objectives against each other",
            "objectives",
            value=", ".join(given) or "none",
            remedy="add one that pulls the other way, such as ttft_p99: minimize",
        )
    return tuple(found)


def parse_slos(given: Mapping[str, object], document: Document) -> tuple[Slo, ...]:
    """`ttft_p99: 2 s` is an upper limit, `output_tok_per_s: ">= 500 tok/s"` a lower one."""
    return tuple(_slo(name, limit, document) for name, limit in given.items())


def _slo(name: str, given: object, document: Document) -> Slo:
    metric = _metric(name, document, "slos", name)
    good = better(metric)
    match = _LIMIT.fullmatch(str(given)) if not isinstance(given, bool) and given is not None else None
    sign, text = (match.group(1), match.group(2)) if match else (None, str(given))
    try:
        value = _parser(metric)(given if isinstance(given, int | float) else text)
    except ValueError as problem:
        raise document.error(
            f"this limit can't be read: {problem}", "slos", name, value=given, remedy=f"write {_example(name, metric)}"
        ) from problem
    at_least = sign in (">=", ">", "≥")
    if good == "higher" and not at_least:
        raise document.error(
            f"{name} is better when it is higher, so its limit is a lower one",
            "slos",
            name,
            value=given,
            remedy=f'write ">= {text}"',
        )
    if good == "lower" and at_least:
        raise document.error(
            f"{name} is better when it is lower, so its limit is an upper one",
            "slos",
            name,
            value=given,
            remedy=f"write {text}",
        )
    if value <= 0:
        raise document.error(
            "a limit must be above 0",
            "slos",
            name,
            value=given,
            remedy="leave it out: a trial that loses requests never meets its SLOs"
            if metric == "failed_share"
            else f"write {_example(name, metric)}",
        )
    return Slo(metric=metric, limit=value, at_least=at_least)


def _parser(metric: str) -> Callable[[object], float]:
    if metric.endswith("_ms"):
        return lambda given: units.duration_s(given) * 1000.0
    if metric.endswith(("_share", "_usage_max")):
        return units.share
    if "per_s" in metric or "rps" in metric:
        return units.rate_per_s
    return units.number_of


def _example(name: str, metric: str) -> str:
    if metric.endswith("_ms"):
        return f"{name}: 2 s"
    if metric.endswith(("_share", "_usage_max")):
        return f"{name}: 1 %"
    unit = "tok/s" if "tok_per_s" in metric else "/s"
    return f'{name}: ">= 5 {unit}"' if "per_s" in metric or "rps" in metric else f"{name}: 32"


def parse_budget(given: Mapping[str, object] | None, document: Document) -> Budget:
    """Without any time limit the wall clock gets one hour."""
    given = given or {}
    seconds: dict[str, float] = {}
    for key in ("gpu_time", "wall_time"):
        if given.get(key) is None:
            continue
        try:
            seconds[key] = units.duration_s(given[key])
        except ValueError as problem:
            raise document.error(str(problem), "budget", key, value=given[key], remedy=f"write {key}: 1 h") from problem
        if seconds[key] <= 0:
            raise document.error(
                "a budget must be above 0", "budget", key, value=given[key], remedy=f"write {key}: 1 h"
            )
    trials = given.get("trials")
    if trials is not None and (not isinstance(trials, int) or isinstance(trials, bool) or trials < 1):
        raise document.error(
            "trials is a whole number, at least 1", "budget", "trials", value=trials, remedy="write trials: 40"
        )
    assert trials is None or isinstance(trials, int)
    wall_s = seconds.get("wall_time")
    if wall_s is None and "gpu_time" not in seconds:
        wall_s = 3600.0
    return Budget(gpu_s=seconds.get("gpu_time"), wall_s=wall_s, trials=trials)


def _metric(name: str, document: Document, *where: str) -> str:
    if name in NAMES:
        return NAMES[name]
    plain = name.removesuffix("_ms")
    if plain in NAMES:
        raise document.error("a metric's name has no unit in a space file", *where, remedy=f"write {plain}")
    near = nearest(name.replace("-", "_"), list(NAMES))
    known = ", ".join(NAMES)
    raise document.error(
        "there is no such metric", *where, value=name, remedy=f"did you mean {near}?" if near else f"known: {known}"
    )


def _direction(metric: str) -> str | None:
    good = better(metric)
    return None if good is None else ("maximize" if good == "higher" else "minimize")
