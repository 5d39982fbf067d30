from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from synthetic_run import OBJECTIVES, TTFT_SLO, measured, record

from autotune.cli.live import View, eta_s, event_line, plain
from autotune.run.progress import Progress, RunningTrial
from autotune.spec.verdict import Infeasible

EVIL = "[red]x[/red]\x1b[31m\nline"
RECORDS = (measured(0, 1000.0, 50.0, role="default"), measured(1, 1500.0, 80.0, {"max-num-seqs": 256}))
PROGRESS = Progress(
    elapsed_s=65.0,
    verdicts={"measured": 2, "infeasible": 1},
    running=(RunningTrial(trial=3, attempt=2, role="search", gpus=2, stage="load", detail="steady", elapsed_s=4.2),),
    front=(0, 1),
    gpus_total=4,
    gpus_busy=2,
    gpu_s=130.0,
    gpu_s_left=260.0,
    wall_s_left=600.0,
    trials_left=7,
    records=RECORDS,
)


def shown(progress: Progress, *, width: int = 110, height: int = 40, name: str = "tiny") -> str:
    console = Console(width=width, height=height, record=True, force_terminal=True, color_system=None)
    view = View(name=name, objectives=OBJECTIVES, slos=(TTFT_SLO,))
    with console.capture() as captured:
        console.print(view.render(progress, height=height))
    return captured.get()


@pytest.mark.parametrize(
    "fact",
    [
        "1 min 5 s elapsed",
        "about 2 min 10 s left",
        "7 trials to go",
        "3 trials done  2 measured  1 infeasible",
        "2 of 4 busy, 2 min 10 s of GPU time spent, 4 min 20 s left",
        "3 (attempt 2)  search     2  load   steady  4 s",
        "1,500 (+50.0 %)",
        "max-num-seqs=256",
    ],
)
def test_the_view_shows(fact: str) -> None:
    assert fact in shown(PROGRESS)


def test_on_a_narrow_screen_the_flags_are_cut_and_the_numbers_stay() -> None:
    long = measured(2, 1600.0, 80.0, {f"a-flag-with-a-long-name-{n}": n for n in range(9)})
    line = next(
        line for line in shown(replace(PROGRESS, records=(*RECORDS, long)), width=100).splitlines() if "…" in line
    )
    assert "1,600 (+60.0 %)" in line
    assert "80 (-60.0 %)" in line


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    assert max(map(len, shown(PROGRESS, width=width).splitlines())) <= width


def test_a_long_front_is_cut_to_the_screens_height() -> None:
    many = tuple(measured(n, 1000.0 + n, 50.0 + n, {"max-num-seqs": n}) for n in range(100))
    text = shown(replace(PROGRESS, records=many), height=24)
    assert len(text.splitlines()) <= 24
    assert "more" in text


def test_hostile_text_is_shown_as_it_is_on_one_line() -> None:
    text = shown(replace(PROGRESS, running=(replace(PROGRESS.running[0], detail=EVIL),)), name=EVIL)
    assert "[red]x[/red] line" in text
    assert "\x1b" not in text


def test_a_view_of_nothing_yet_can_be_shown() -> None:
    empty = replace(PROGRESS, verdicts={}, running=(), records=(), gpus_total=0, gpus_busy=0)
    assert "0 trials done" in shown(empty)


def test_in_a_pipe_an_event_is_one_whole_line_and_a_tick_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=80, highlight=False)
    plain(console, PROGRESS, OBJECTIVES)
    failed = record(4, Infeasible(cause="oom", evidence=EVIL * 50), {"max-num-seqs": 1})
    plain(console, replace(PROGRESS, event="trial 4 infeasible", finished=failed), OBJECTIVES)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("[   65.0 s] trial 4 infeasible: oom: [red]x[/red] line")
    assert lines[0].endswith("max-num-seqs=1")


def test_an_event_says_what_was_measured() -> None:
    line = event_line(replace(PROGRESS, event="trial 1 measured", finished=RECORDS[1]), OBJECTIVES)
    assert "output_tok_per_s_per_gpu 1,500, ttft_p99_ms 80; max-num-seqs=256" in line


def test_the_end_is_when_the_first_budget_runs_out() -> None:
    assert eta_s(PROGRESS) == 130.0  # GPU time, at the pace so far
    assert eta_s(replace(PROGRESS, gpu_s_left=None)) == pytest.approx(7 * 65 / 3)
    assert eta_s(replace(PROGRESS, gpu_s_left=None, trials_left=None)) == 600.0
    assert eta_s(replace(PROGRESS, gpu_s_left=None, trials_left=None, wall_s_left=None)) is None
