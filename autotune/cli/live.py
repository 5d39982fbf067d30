"""How a running search looks: a live view on a terminal, one line per event in a pipe."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from autotune.cli.output import say, table
from autotune.report.evidence import one_line
from autotune.report.numbers import duration, number, percent, plural
from autotune.report.summary import Summary, summarise
from autotune.report.trial_line import trial_line
from autotune.run.progress import Progress
from autotune.spec.objective import Objective, Slo

_STYLES: Mapping[str, str] = {
    "measured": "green",
    "dominated": "cyan",
    "infeasible": "yellow",
    "invalid": "magenta",
    "broken": "red",
}
_OTHER_LINES = 14
"""Lines of the view besides the rows of its two tables."""


@dataclass(slots=True, kw_only=True)
class View:
    """The live view's memory: the last events, and the summary of the records it last saw."""

    name: str
    objectives: Sequence[Objective]
    slos: Sequence[Slo]
    events: deque[str] = field(default_factory=lambda: deque(maxlen=4))
    _records: int = -1
    _summary: Summary | None = None

    def render(self, progress: Progress, *, height: int = 40) -> RenderableType:
        """Everything that fits into `height` lines: of the front the best in the first objective."""
        if len(progress.records) != self._records:  # the front changes only when a trial ends
            self._records = len(progress.records)
            self._summary = summarise(progress.records, self.objectives, self.slos)
        assert self._summary is not None
        parts: list[RenderableType] = [self._headline(progress), _counts(progress), _devices(progress)]
        if progress.running:
            parts += [Text(), _running(progress)]
        if self._summary.front:
            rows = max(3, height - _OTHER_LINES - len(progress.running))
            parts += [Text(), _front(self._summary, at_most=rows)]
        if self.events:
            parts += [Text(), *(Text(event, style="dim", no_wrap=True, overflow="ellipsis") for event in self.events)]
        return Group(*parts)

    def _headline(self, progress: Progress) -> Text:
        left = eta_s(progress)
        line = Text.assemble((one_line(self.name, 60), "bold"), f"  {duration(round(progress.elapsed_s))} elapsed")
        if left is not None:
            line.append(f", about {duration(round(left))} left")
        if progress.trials_left is not None:
            line.append(f", {plural(progress.trials_left, 'trial')} to go")
        return line


@contextmanager
def watching(
    console: Console, *, name: str, objectives: Sequence[Objective], slos: Sequence[Slo]
) -> Iterator[Callable[[Progress], None]]:
    """A function to hand to the search. Live on a terminal, plain lines elsewhere; the screen is left as it was
    however the search ends."""
    if not console.is_terminal:
        yield lambda progress: plain(console, progress, objectives)
        return
    view = View(name=name, objectives=objectives, slos=slos)
    with Live(console=console, refresh_per_second=4, transient=True, vertical_overflow="crop") as live:

        def watch(progress: Progress) -> None:
            if progress.event:
                view.events.append(event_line(progress, objectives))
            live.update(view.render(progress, height=console.height))

        yield watch


def plain(console: Console, progress: Progress, objectives: Sequence[Objective]) -> None:
    """One line per event; nothing for a mere tick."""
    if progress.event:
        say(console, event_line(progress, objectives))


def event_line(progress: Progress, objectives: Sequence[Objective]) -> str:
    line = f"[{progress.elapsed_s:7.1f} s] {one_line(progress.event, 400)}"
    return line if progress.finished is None else f"{line}: {trial_line(progress.finished, objectives)}"


def eta_s(progress: Progress) -> float | None:
    """When the first of the budgets runs out at the pace so far; None while nothing can be said."""
    guesses = [progress.wall_s_left]
    if progress.gpu_s_left is not None and progress.gpu_s > 0:
        guesses.append(progress.gpu_s_left * progress.elapsed_s / progress.gpu_s)
    done = sum(progress.verdicts.values())
    if progress.trials_left is not None and done:
        guesses.append(progress.trials_left * progress.elapsed_s / done)
    return min((guess for guess in guesses if guess is not None), default=None)


def _counts(progress: Progress) -> Text:
    line = Text(f"{plural(sum(progress.verdicts.values()), 'trial')} done")
    for verdict, style in _STYLES.items():
        if count := progress.verdicts.get(verdict, 0):
            line.append("  ").append(f"{count} {verdict}", style=style)
    return line


def _devices(progress: Progress) -> Text:
    busy, total = progress.gpus_busy, progress.gpus_total
    width = min(total, 16)
    filled = round(width * busy / total) if total else 0
    line = Text.assemble("GPUs ", ("■" * filled, "green"), ("□" * (width - filled), "dim"), f" {busy} of {total} busy")
    line.append(f", {duration(round(progress.gpu_s))} of GPU time spent")
    if progress.gpu_s_left is not None:
        line.append(f", {duration(round(progress.gpu_s_left))} left")
    return line


def _running(progress: Progress) -> RenderableType:
    rows = [
        [
            str(t.trial) + (f" (attempt {t.attempt})" if t.attempt > 1 else ""),
            t.role,
            str(t.gpus),
            t.stage,
            one_line(t.detail, 60),
            duration(round(t.elapsed_s)),
        ]
        for t in progress.running
    ]
    return table("Running", ["trial", "role", "GPUs", "stage", "", "for"], rows, right=(0, 2, 5))


def _front(summary: Summary, *, at_most: int) -> RenderableType:
    rows = []
    for tried in summary.front[:at_most]:
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
                summary.flags_of(tried),
            ]
        )
    more = len(summary.front) - at_most
    title = "Front (gain over the default)" if summary.default else "Front"
    if more > 0:
        title += f", {more} more"
    metrics = [objective.metric for objective in summary.objectives]
    return table(title, ["trial", *metrics, "SLOs met", "flags"], rows, right=range(len(metrics) + 1), fold=False)
