"""A run's results on the terminal: the end of `vtune search`, and `vtune status`."""

from __future__ import annotations

import shlex

from rich.console import Console

from autotune.cli.output import say, show, table
from autotune.report.evidence import one_line
from autotune.report.gpu_books import engines_sentence, gpu_seconds, share, total_sentence
from autotune.report.numbers import limit, number, percent, plural
from autotune.report.outcome import sentence, trade_off
from autotune.report.stress import stress_lines
from autotune.report.study import Study
from autotune.report.summary import Summary

_FAILURES_SHOWN = 6


def show_results(console: Console, study: Study) -> None:
    """State, trials, front, best per SLO, gains, failures, and what to do next."""
    summary = study.summary
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(summary.verdicts.items()))
    say(
        console,
        f"{one_line(study.header.name, 120)}: {study.state}, {plural(summary.trials, 'trial')}"
        + _bracketed(counts)
        + (f", {plural(summary.repeats, 'repeat')}" if summary.repeats else ""),
    )
    if study.header.message:
        say(console, one_line(study.header.message, 600))
    if study.header.options.get("simulate"):
        say(console, "The engines were simulated: no figure here says anything about a real one.")
    _gpu_time(console, study)
    if summary.default_failure:
        say(console, f"The default gave no valid run: {summary.default_failure}")
    _front(console, summary)
    _best_per_slo(console, summary)
    _gains(console, summary)
    _failures(console, summary)
    _stress(console, summary)
    say(console)
    say(console, sentence(summary), style="bold")
    for line in trade_off(summary):
        say(console, line)
    say(console)
    run = shlex.quote(str(study.path))
    say(console, f"Run:     {study.path}")
    if summary.best:
        say(console, f"Serve:   vtune best {run}")
    say(console, f"Report:  vtune report {run} -o report.md")
    if study.state in ("interrupted", "killed"):
        say(console, f"Go on:   vtune search --resume {run}")


def _gpu_time(console: Console, study: Study) -> None:
    books = study.gpu_books
    parts = [f"{use.replace('_', '-')} {gpu_seconds(books, use)} ({share(books, use)})" for use in books.split]
    say(console, f"GPU time: {total_sentence(books)}")
    say(console, f"          {', '.join(parts)}")
    say(console, f"Engines:  {engines_sentence(study.summary.spending)}")


def _front(console: Console, summary: Summary) -> None:
    if not summary.front:
        return
    rows = []
    for tried in summary.front:
        gains = {gain.objective.metric: gain for gain in summary.gains_of(tried)}
        cells = []
        for objective in summary.objectives:
            gain = gains.get(objective.metric)
            mean = number(tried.mean(objective.metric))
            cells.append(f"{mean} ({percent(gain.value)})" if gain and tried is not summary.baseline else mean)
        name = summary.name_of(tried)
        label = str(tried.trial) if name.startswith("trial") else f"{tried.trial} {name.removeprefix('the ')}"
        rows.append([label, *cells, "yes" if tried.meets(summary.slos) else "no"])
    metrics = [objective.metric for objective in summary.objectives]
    say(console)
    show(console, table("Front", ["trial", *metrics, "SLOs met"], rows, right=range(1, len(metrics) + 1)))
    say(console)
    flags = [
        [str(tried.trial), ("the default: " if tried is summary.default else "") + summary.flags_of(tried)]
        for tried in summary.front
    ]
    title = "Their flags" if summary.default_config is None else "Their flags, where they differ from the default's"
    show(console, table(title, ["trial", "flags"], flags))


def _best_per_slo(console: Console, summary: Summary) -> None:
    if not summary.slos:
        return
    first = summary.objectives[0].metric
    chosen = [("all of them", summary.best), *((limit(slo), tried) for slo, tried in summary.best_by_slo)]
    rows = [
        [name, str(tried.trial) if tried else "none", number(tried.mean(first)) if tried else "-"]
        for name, tried in chosen
    ]
    say(console)
    show(console, table("Best per SLO", ["limit", "trial", first], rows, right=(1, 2)))


def _gains(console: Console, summary: Summary) -> None:
    if not summary.gains or summary.best is summary.baseline or summary.best is None or summary.baseline is None:
        return
    rows = [
        [gain.objective.metric, number(gain.old), number(gain.new), percent(gain.value), gain.standing]
        for gain in summary.gains
    ]
    say(console)
    against = summary.name_of(summary.baseline)
    title = f"Trial {summary.best.trial} against {against} (positive is better)"
    show(console, table(title, ["", against, "best", "gain", ""], rows, right=(1, 2, 3)))


def _stress(console: Console, summary: Summary) -> None:
    lines = stress_lines(summary)
    if lines:
        say(console)
    for line in lines:
        say(console, f"{line[0].upper()}{line[1:]}")


def _failures(console: Console, summary: Summary) -> None:
    if not summary.failures:
        return
    rows = [
        [group.verdict, group.cause, str(len(group.trials)), one_line(group.evidence, 160)]
        for group in summary.failures[:_FAILURES_SHOWN]
    ]
    say(console)
    show(console, table("Failures", ["verdict", "cause", "trials", "evidence (first of them)"], rows, right=(2,)))


def _bracketed(text: str) -> str:
    return f" ({text})" if text else ""
