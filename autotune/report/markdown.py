"""The report of a run as Markdown, for people who did not run the search.

Everything that came from a user or an engine is cleaned (`evidence`) and escaped, so that it can't change the page.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from autotune.report.cautions import cautions
from autotune.report.command import quoted
from autotune.report.environment import shown_facts
from autotune.report.evidence import is_secret_name, one_line
from autotune.report.gpu_books import engines_sentence, gpu_seconds, share, total_sentence
from autotune.report.numbers import duration, limit, number, percent, plural
from autotune.report.outcome import confidence, sentence, trade_off
from autotune.report.stress import stress_lines
from autotune.report.study import Study
from autotune.report.summary import Summary
from autotune.report.tried import Tried

# What means something to Markdown inside a line (CommonMark, GitHub's tables, strike-through, formulas and links); an
# underscore between two letters or digits, as in every metric's name, means nothing.
_MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ALWAYS = (
    "output_tok_per_s_per_gpu",
    "requests_per_s_per_gpu",
    "goodput_rps",
    "ttft_p99_ms",
    "tpot_p99_ms",
    "e2e_p99_ms",
    "preemptions",
)
"""Shown in the comparison besides objectives and SLOs, where measured."""


def markdown(study: Study) -> str:
    return "\n".join(_lines(study)).rstrip() + "\n"


def escaped(text: str, limit: int = 240) -> str:
    """`text` on one line that Markdown and HTML show as it is."""
    plain = one_line(text, limit)
    html = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    unlinked = html.replace("://", "&#58;//").replace("www.", "www&#46;").replace("@", "&#64;")
    return _MARKUP.sub(lambda match: "\\" + match.group(0), unlinked)


def code_block(text: str) -> list[str]:
    """A fenced block that its content can't close."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return [f"{fence}sh", text, fence]


def _lines(study: Study) -> Iterator[str]:
    summary, header = study.summary, study.header
    yield f"# {escaped(header.name)}: what the search found"
    yield ""
    yield f"**{escaped(sentence(summary), 1000)}**"
    yield ""
    for line in trade_off(summary):
        yield f"- {escaped(line)}"
    yield from _caveats(study)
    yield from _comparison(summary)
    yield from _confirmation(summary)
    yield from _front(summary)
    yield from _slos(summary)
    yield from _failures(summary)
    yield from _books(study)
    yield from _environment(study)
    yield from _commands(study)


def _caveats(study: Study) -> Iterator[str]:
    summary = study.summary
    notes = []
    if study.state != "done":
        notes.append(f"This run is {study.state}: what follows is what it had found so far.")
    if study.header.options.get("simulate"):
        notes.append("The engines were simulated: no figure here says anything about a real one.")
    if summary.default_failure:
        notes.append(f"The default configuration gave no valid run ({summary.default_failure}): a finding in itself.")
        if summary.baseline:
            notes.append(f"Gains are stated against {summary.name_of(summary.baseline)} instead.")
    if summary.best is not None:
        notes += [f"Of {summary.name_of(summary.best)}: {caution}." for caution in cautions(summary.best.runs[0])]
    for note in notes:
        yield f"- {escaped(note, 500)}"
    yield ""


def _comparison(summary: Summary) -> Iterator[str]:
    columns: list[tuple[str, Tried]] = []
    for title, tried in (
        ("default", summary.default),
        ("incumbent", summary.incumbent),
        ("best", summary.best or summary.closest),
    ):
        if tried is not None and not (title == "best" and any(tried is other for _, other in columns)):
            name = "closest" if title == "best" and summary.best is None else title
            columns.append((f"{name} (trial {tried.trial})", tried))
    if not columns:
        return
    metrics = _metrics(summary, [tried for _, tried in columns])
    yield "## Default, incumbent, best"
    yield ""
    gains = {g.objective.metric: g for g in summary.gains} if summary.best is not summary.baseline else {}
    rows = []
    for metric in metrics:
        gain = gains.get(metric)
        rows.append(
            [escaped(metric)]
            + [number(tried.mean(metric)) for _, tried in columns]
            + [f"{percent(gain.value)}, {gain.standing}" if gain else ""]
        )
    rows.append(["runs", *(str(len(tried.count)) for _, tried in columns), ""])
    rows.append(["failed requests", *(number(tried.failed_requests) for _, tried in columns), ""])
    rows.append(["meets the SLOs", *("yes" if t.meets(summary.slos) else "no" for _, t in columns), ""])
    rows.append(["GPUs", *(str(tried.config.gpus) for _, tried in columns), ""])
    rows.append(["flags", *(escaped(summary.flags_of(tried), 600) for _, tried in columns), ""])
    against = summary.name_of(summary.baseline) if summary.baseline else "the baseline"
    yield from _table(["", *(title for title, _ in columns), f"gain over {against}"], rows)
    if summary.gains and summary.best is not summary.baseline:
        yield f"Positive gain is better. {confidence(summary.gains[0])}"
        yield ""


def _confirmation(summary: Summary) -> Iterator[str]:
    found = summary.confirmation
    yield "## Confirmation"
    yield ""
    if found is None:
        yield "The finalists were not measured again: every gain here rests on single runs and is flattered by chance."
        yield ""
        yield from _drifted(summary)
        return
    yield (
        f"The finalists and {summary.name_of(summary.baseline) if summary.baseline else 'the baseline'} "
        f"({plural(found.baseline_runs, 'run')}) were started cold again in random order. Only these runs are "
        f"compared; intervals hold at 95 %, in {escaped(summary.objectives[0].metric)} for all finalists together. "
        f"Conclusion: **{found.decision}**."
    )
    yield ""
    rows = []
    for finalist in found.finalists:
        tried = next(t for t in summary.tried if t.config.key == finalist.config.key)
        for objective in summary.objectives:
            gain = finalist.gains.get(objective.metric)
            promised = finalist.search_gains.get(objective.metric)
            shrunk = finalist.shrinkage(objective.metric)
            rows.append(
                [
                    str(tried.trial),
                    str(finalist.runs),
                    escaped(objective.metric),
                    "-" if gain is None else percent(gain.gain),
                    "-" if gain is None else f"{percent(gain.low)} to {percent(gain.high)}",
                    "-" if promised is None else percent(promised),
                    "-" if shrunk is None else percent(shrunk),
                    "yes" if finalist.meets else "no",
                ]
            )
    header = ["trial", "runs", "objective", "gain", "interval", "gain in the search", "difference", "SLOs met"]
    yield from _table(header, rows)
    if lines := stress_lines(summary):
        yield "Then each was put under more load at once than it was measured with (docs/measurement.md):"
        yield ""
        yield from (f"- {escaped(line, 500)}" for line in lines)
        yield ""
    spreads = [f"{100 * cv:.1f} % in {escaped(metric)}" for metric, cv in found.between_run_cv.items()]
    if spreads:
        yield f"Two runs of one configuration differ by (one standard deviation) {', '.join(spreads)}."
        yield ""
    yield from _drifted(summary)


def _drifted(summary: Summary) -> Iterator[str]:
    first, drift = summary.first_run, summary.drift
    if first is not None:
        yield (
            f"The very first run had {number(first.first)} in {escaped(summary.objectives[0].metric)}, "
            f"{plural(first.runs, 'later run')} of the same configuration {number(first.later)} on average "
            f"({percent(first.change)}). It may have paid for empty caches, so nothing is judged by it."
        )
        yield ""
    if drift is None:
        return
    yield (
        f"Over {duration(round(drift.over_s))} the baseline's {escaped(summary.objectives[0].metric)} changed by "
        f"{percent(drift.change)} ({percent(drift.low)} to {percent(drift.high)} at 95 %): "
        f"{'the machine drifted' if drift.real else 'no drift to speak of'}."
    )
    yield ""


def _front(summary: Summary) -> Iterator[str]:
    yield "## Front"
    yield ""
    if not summary.front:
        yield "No valid configuration has every objective."
        yield ""
        return
    yield (
        f"{plural(len(summary.front), 'configuration')} that no other beats in "
        f"{escaped(' and '.join(o.metric for o in summary.objectives))} at once, the best in the first of them on top."
    )
    yield ""
    rows = []
    for tried in summary.front:
        gains = {gain.objective.metric: gain for gain in summary.gains_of(tried)}
        cells = []
        for objective in summary.objectives:
            gain = gains.get(objective.metric) if tried is not summary.baseline else None
            cells.append(number(tried.mean(objective.metric)) + (f" ({percent(gain.value)})" if gain else ""))
        rows.append(
            [
                str(tried.trial),
                *cells,
                "yes" if tried.meets(summary.slos) else "no",
                str(tried.config.gpus),
                escaped(summary.flags_of(tried), 600),
            ]
        )
    yield from _table(["trial", *(escaped(o.metric) for o in summary.objectives), "SLOs met", "GPUs", "flags"], rows)
    if summary.near_front:
        names = _some([tried.trial for tried in summary.near_front])
        yield f"Run-to-run noise can't tell these apart from the front: {names}."
        yield ""


def _slos(summary: Summary) -> Iterator[str]:
    if not summary.slos:
        return
    yield "## Best per SLO"
    yield ""
    first = summary.objectives[0].metric
    rows = [["all of them", str(summary.best.trial) if summary.best else "none", _value(summary.best, first)]]
    rows += [
        [escaped(limit(slo)), str(tried.trial) if tried else "none", _value(tried, first)]
        for slo, tried in summary.best_by_slo
    ]
    yield from _table(["limit", "trial", escaped(first)], rows)


def _failures(summary: Summary) -> Iterator[str]:
    yield "## Trials"
    yield ""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(summary.verdicts.items()))
    again = f" {plural(summary.repeats, 'further run')} repeated some of them." if summary.repeats else ""
    yield f"{plural(summary.trials, 'trial')}: {counts or 'none'}.{again}"
    yield ""
    if not summary.failures:
        return
    rows = [
        [f.verdict, escaped(f.cause), str(len(f.trials)), escaped(_some(f.trials)), escaped(f.evidence)]
        for f in summary.failures
    ]
    yield from _table(["verdict", "cause", "count", "trials", "evidence (first of them)"], rows)


def _books(study: Study) -> Iterator[str]:
    spending, books = study.summary.spending, study.gpu_books
    yield "## GPU time"
    yield ""
    yield f"{total_sentence(books)}. {engines_sentence(spending)}."
    yield ""
    rows = [[use.replace("_", "-"), gpu_seconds(books, use), share(books, use)] for use in books.split]
    yield from _table(["", "GPU-seconds", "share"], rows)
    yield (
        "Dead is what attempts took that left no measurement; idle are devices without a trial, engines that stop, and "
        "what a trial does besides starting, warming up and load."
    )
    yield ""
    by_verdict = ", ".join(f"{number(gpu_s)} {verdict}" for verdict, gpu_s in spending.by_verdict.items())
    yield f"The budget counts what trials booked: {number(spending.total_gpu_s)} GPU-seconds ({by_verdict or 'none'})."
    yield ""


def _environment(study: Study) -> Iterator[str]:
    header = study.header
    yield "## Environment"
    yield ""
    facts = {
        "run": str(study.path),
        "space": header.space_file or header.name,
        "workload": header.workload_file or (study.summary.records[0].workload if study.summary.records else "-"),
        "seed": str(header.seed),
        "started": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(header.started_at)),
    }
    if header.finished_at is not None:
        facts["took"] = duration(header.finished_at - header.started_at)
    facts["nodes"] = str(len({record.node for record in study.summary.records}))
    facts["devices"] = ", ".join(sorted({d for record in study.summary.records for d in record.devices})) or "-"
    facts |= header.versions
    facts |= shown_facts(study.environment)
    yield from _table(
        ["", ""],
        [[escaped(k), "&lt;redacted&gt;" if is_secret_name(k) else escaped(v, 300)] for k, v in facts.items()],
    )


def _commands(study: Study) -> Iterator[str]:
    summary = study.summary
    yield "## Commands"
    yield ""
    chosen = [("Best", summary.best), ("Default", summary.default), ("Incumbent", summary.incumbent)]
    for title, tried in chosen:
        if tried is None:
            continue
        yield f"{title} (trial {tried.trial}):"
        yield ""
        yield from code_block(study.command(tried).shell())
        yield ""
    yield "This search:"
    yield ""
    yield from code_block(" ".join(quoted(one_line(word, 400)) for word in study.header.command))
    yield ""


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + " --- |" * len(header)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _metrics(summary: Summary, shown: Sequence[Tried]) -> list[str]:
    wanted = [o.metric for o in summary.objectives] + [slo.metric for slo in summary.slos] + list(_ALWAYS)
    return [metric for metric in dict.fromkeys(wanted) if any(tried.mean(metric) is not None for tried in shown)]


def _value(tried: Tried | None, metric: str) -> str:
    return number(tried.mean(metric)) if tried else "-"


def _some(trials: Sequence[int], at_most: int = 8) -> str:
    more = f" and {len(trials) - at_most} more" if len(trials) > at_most else ""
    return ", ".join(str(trial) for trial in trials[:at_most]) + more
