"""Field cases about what may be concluded from runs that differ by more than their configurations do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from repeated_runs import OBJECTIVES, run

from autotune.history.record import TrialRecord
from autotune.report.summary import summarise
from autotune.search.conclusion import conclude

COLD, WARM = 250.0, 1000.0
"""tok/s of the first engine on empty caches, and of the same configuration later (vllm#14006)."""


def searched(candidate: float) -> list[TrialRecord]:
    """Trial 0 found empty caches, trial 8 is its configuration again; one candidate, then both run again."""
    return [
        run(0, "default", {}, COLD),
        *(run(n, "search", {"a": n}, candidate) for n in range(1, 8)),
        run(8, "baseline", {}, WARM),
    ]


def confirmed(new: Sequence[float], old: Sequence[float]) -> list[TrialRecord]:
    """In turn, each once per block."""
    records = []
    for block, (value, base) in enumerate(zip(new, old, strict=True)):
        records += [run(20 + 2 * block, "confirm", {"a": 1}, value), run(21 + 2 * block, "confirm", {}, base)]
    return records


def test_ben_07_the_first_run_is_shown_beside_the_same_configuration_later() -> None:
    first = summarise(searched(900.0), OBJECTIVES).first_run
    assert first is not None
    assert (first.first, first.later, first.runs) == (COLD, WARM, 1)
    assert first.change == pytest.approx(3.0)


def test_ben_07_who_ran_on_empty_caches_does_not_lose_to_who_came_later() -> None:
    """A candidate of 900 beats the 250 of trial 0, and not the 1000 of the same configuration in trial 8."""
    found = summarise(searched(900.0), OBJECTIVES)
    assert found.baseline is not None
    assert found.best is found.baseline


def test_ben_07_a_confirmation_compares_warm_runs_only() -> None:
    records = searched(900.0) + confirmed([899, 901, 900], [1001, 999, 1000])
    conclusion = conclude(records, OBJECTIVES, ())
    assert conclusion is not None
    assert conclusion.decision == "keep the default"


def test_ben_08_a_win_of_3_percent_inside_noise_of_5_percent_is_not_claimed() -> None:
    noise = np.array([-0.05, 0.0, 0.05])
    records = [run(0, "default", {}, 1000.0), run(1, "search", {"a": 1}, 1080.0)]
    records += confirmed((1030 * np.exp(noise)).tolist(), (1000 * np.exp(np.roll(noise, 1))).tolist())
    conclusion = conclude(records, OBJECTIVES, ())
    assert conclusion is not None
    [finalist] = conclusion.finalists
    gain = finalist.gains["output_tok_per_s_per_gpu"]
    assert gain.gain == pytest.approx(0.03)
    assert gain.low < 0 < gain.high
    assert (conclusion.decision, conclusion.winner) == ("no clear winner", None)


def test_ben_08_the_same_win_in_noise_of_half_a_percent_is() -> None:
    noise = np.array([-0.005, 0.0, 0.005])
    records = [run(0, "default", {}, 1000.0), run(1, "search", {"a": 1}, 1030.0)]
    records += confirmed((1030 * np.exp(noise)).tolist(), (1000 * np.exp(np.roll(noise, 1))).tolist())
    conclusion = conclude(records, OBJECTIVES, ())
    assert conclusion is not None
    assert conclusion.decision == "better"
