"""A plan on the terminal: `vtune check`, and the first thing that `vtune search` prints."""

from __future__ import annotations

import math

from rich.console import Console

from autotune.cli.output import say, show, table
from autotune.report.evidence import one_line, shown_flags
from autotune.report.numbers import duration, limit, number, plural
from autotune.report.plan import Plan, shown_condition, shown_domain
from autotune.report.validation import Validation
from autotune.spec.objective import Budget


def show_plan(console: Console, plan: Plan) -> None:
    problem, catalogue = plan.problem, plan.catalogue
    space = problem.space
    say(
        console,
        f"Space {one_line(space.name, 120)}: {one_line(space.model)}, workload {one_line(problem.workload.name, 120)}",
        style="bold",
    )
    say(console, f"vLLM {catalogue.vllm_version} ({catalogue.platform}) in {catalogue.python}")
    say(console, "Objectives: " + ", ".join(f"{o.direction} {o.metric}" for o in problem.objectives))
    if problem.slos:
        say(console, "SLOs: " + ", ".join(limit(slo) for slo in problem.slos))
    say(console, f"Budget: {_budget(problem.budget)}; seed {problem.seed}")
    say(console, f"Default (trial 0): {shown_flags(space.fixed)}")
    if problem.incumbent:
        say(console, f"Incumbent (trial 1): {shown_flags(problem.incumbent.flags)}")
    say(console)
    rows = [
        [
            dimension.name,
            shown_domain(dimension.domain),
            "continuous" if math.isinf(dimension.size) else number(dimension.size),
            shown_condition(dimension.when),
            "may change answers" if dimension.gated else "",
        ]
        for dimension in space.dimensions
    ]
    show(console, table("Searched", ["dimension", "values", "how many", "only when", ""], rows, right=(2,)))
    count = "infinitely many" if math.isinf(plan.points) else f"at most {number(plan.points)}"
    say(console, f"{count} candidates" + (", before rules:" if space.rules else ""))
    for rule in space.rules:
        say(console, f"  rule: {rule.text}")
    for removed in plan.removed:
        say(console, f"  not searched: {removed.name}={removed.value}: {removed.reason}")
    for notice in problem.notices:
        say(console, f"Note: {notice}", style="yellow")
    if plan.validation is not None:
        _validation(console, plan.validation)
    _capacity(console, plan)
    _estimate(console, plan)


def _validation(console: Console, made: Validation) -> None:
    """vLLM's sentences are a log's: shown as evidence is, on one line each."""
    if made.import_s is not None and made.median_ms is not None:
        say(
            console,
            f"vLLM itself was asked about {plural(len(made.asked), 'configuration')} and refuses {len(made.refused)} "
            f"({duration(made.import_s)} to import it, {made.median_ms:.1f} ms each)",
        )
    for change, refused in made.refused:
        say(console, f"  refused: {change}: {one_line(refused.evidence)} ({refused.cause})")
    for change, unknown in made.unknown if made.not_asked is None else ():
        say(console, f"  not known: {change}: {one_line(unknown.reason)}")
    if made.left_out:
        say(console, f"  not asked: {plural(made.left_out, 'configuration')} more that differ in one dimension")
    if made.not_asked is not None:
        say(console, f"Note: vLLM itself wasn't asked about the space: {one_line(made.not_asked)}", style="yellow")


def _capacity(console: Console, plan: Plan) -> None:
    if not plan.capacity:
        return
    rows = [
        [
            row.change,
            str(row.capacity.gpus),
            number(row.capacity.weights_gib),
            number(row.capacity.kv_gib),
            f"{number(row.prediction.pessimistic.kv_gib)} to {number(row.prediction.optimistic.kv_gib)}",
            number(row.capacity.kv_tokens),
            "-" if row.capacity.max_concurrency is None else f"{row.capacity.max_concurrency:,.1f}",
            "can't fit" if row.impossible else "" if row.capacity.fits else "doesn't fit",
        ]
        for row in plan.capacity
    ]
    on = f" on GPUs of {number(plan.gpu_gib)} GiB" if plan.gpu_gib is not None else ""
    columns = ["", "GPUs", "weights GiB", "KV GiB", "between", "KV tokens", "full-length requests", ""]
    say(console)
    show(console, table(f"Capacity{on}, estimated; GiB per GPU", columns, rows, right=range(1, 7)))


def _estimate(console: Console, plan: Plan) -> None:
    found = plan.estimate
    low, high = found.trials
    trials = plural(low, "trial") if low == high else f"{low:,} to {plural(high, 'trial')}"
    unit = "CPU engine" if plan.platform == "cpu" else "GPU"
    say(console)
    say(
        console,
        f"Estimate: {trials}, at most one engine start each, {duration(found.trial_s[0])} to "
        f"{duration(found.trial_s[1])} a trial; {_hours(found.gpu_hours)} {unit}-hours, "
        f"{duration(found.wall_s[0])} to {duration(found.wall_s[1])} of wall time",
    )
    say(console, f"  taking {'; '.join(found.assumptions)}")


def _hours(hours: tuple[float, float]) -> str:
    low, high = (f"{value:.2g}" for value in hours)
    return low if low == high else f"{low} to {high}"


def _budget(budget: Budget) -> str:
    parts = [
        f"{duration(budget.gpu_s)} of GPU time" if budget.gpu_s is not None else "",
        f"{duration(budget.wall_s)} of wall time" if budget.wall_s is not None else "",
        plural(budget.trials, "trial") if budget.trials is not None else "",
    ]
    return ", ".join(part for part in parts if part) or "none"
