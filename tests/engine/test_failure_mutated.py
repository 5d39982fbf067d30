"""A failure keeps its class whatever its numbers, paths, prefixes and line ends are."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Callable

import pytest
from captured import LOGS, log
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engine.failure import first_failure
from autotune.engine.log_lines import split_logs
from autotune.engine.log_reading import read_log

NAMES = sorted(path.name.partition(".log")[0] for path in LOGS.glob("*.log*"))
REPORTS = sorted(f"reports/{path.stem}" for path in (LOGS / "reports").glob("*.log"))
PREFIXES = [
    "   14.28 ",
    "12:00:01 ",
    "2026-11-29 14:54:05,123 ",
    "[2026-11-29T14:54:05.123Z] ",
    "(EngineCore_DP0 pid=77) ",
    "(Worker_TP3_EP3 pid=1234) ",
    "(RayWorkerWrapper pid=1234, ip=192.0.2.7) ",
    "[rank3]: ",
    "vllm-1  | ",
]
Fold = Callable[[str, int], str]


def unchanged(text: str, width: int) -> str:
    return text


def at_the_width(text: str, width: int) -> str:
    """As a terminal does: between any two letters."""
    lines = (line[at : at + width] for line in text.splitlines() for at in range(0, max(len(line), 1), width))
    return "\n".join(lines)


def without_trailing_spaces(text: str, width: int) -> str:
    return "\n".join(line.rstrip() for line in at_the_width(text, width).splitlines())


def between_words(text: str, width: int) -> str:
    return "\n".join(textwrap.fill(line, width) if len(line) > width else line for line in text.splitlines())


def between_words_only(text: str, width: int) -> str:
    """As `fmt` does: hyphenated and long words stay whole."""
    fold = textwrap.TextWrapper(width, break_on_hyphens=False, break_long_words=False).fill
    return "\n".join(fold(line) if len(line) > width else line for line in text.splitlines())


def indented(text: str, width: int) -> str:
    fold = textwrap.TextWrapper(width, subsequent_indent="    ").fill
    return "\n".join(fold(line) if len(line) > width else line for line in text.splitlines())


FOLDS: list[Fold] = [unchanged, at_the_width, without_trailing_spaces, between_words, between_words_only]


def with_other_numbers(text: str, seed: int) -> str:
    """Zeros and short whole numbers stay, so do error codes and clocks: they mean something."""
    chance = random.Random(seed)

    def other(match: re.Match[str]) -> str:
        return re.sub(r"\d", lambda _: str(chance.randint(1, 9)), match[0]) if match[0].strip("0.,") else match[0]

    return re.sub(r"(?<![\w.])\d[\d,]*\.\d+\b|(?<![\w.:/-])\d{3,}(?![\w:])(?! Client)", other, text)


def with_other_paths(text: str) -> str:
    return text.replace("site-packages/", "opt/venv-3/lib/python3.12/site-packages/").replace(
        "/usr/lib", "/nix/store/x1"
    )


def read(text: str) -> tuple[str | None, str]:
    reading = read_log(text)
    return (reading.failure.cause if reading.failure else None, reading.stage)


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: fold.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_a_whole_log_reads_the_same_folded_and_with_other_numbers_and_paths(name: str, fold: Fold) -> None:
    text = log(name)
    assert read(fold(with_other_paths(with_other_numbers(text, seed=len(name))), 80)) == read(text)


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: fold.__name__)
@pytest.mark.parametrize("name", REPORTS)
def test_a_reported_log_reads_the_same_behind_any_prefix(name: str, fold: Fold) -> None:
    for number, part in enumerate(split_logs(log(name))):
        for prefix in PREFIXES:
            text = "\n".join(prefix + line for line in with_other_numbers(part, seed=number).splitlines())
            assert read(fold(text, 80)) == read(part), prefix


@pytest.mark.parametrize("fold", [*FOLDS, indented], ids=lambda fold: fold.__name__)
@pytest.mark.parametrize("name", [*NAMES, *REPORTS])
def test_a_cause_reads_the_same_where_only_its_own_line_was_folded(name: str, fold: Fold) -> None:
    text = split_logs(log(name))[0]
    found = first_failure(text)
    if found is not None:
        lines = [fold(line, 80) if found.evidence[:60] in line else line for line in text.splitlines()]
        folded = first_failure("\n".join(lines))
        assert folded is not None
        assert (folded.cause, folded.stage, folded.bounds) == (found.cause, found.stage, found.bounds)


@settings(derandomize=True)
@given(
    st.sampled_from(REPORTS),
    st.sampled_from(PREFIXES),
    st.sampled_from(FOLDS),
    st.sampled_from([80, 90, 100, 110, 120, 132]),
    st.integers(min_value=0, max_value=1000),
)
def test_any_usual_width_will_do_where_the_whole_log_is_folded(
    name: str, prefix: str, fold: Fold, width: int, seed: int
) -> None:
    """Of a log of three lines, as these reports are, an odd width (72, 81) can't always be told from its words."""
    part = split_logs(log(name))[0]
    text = "\n".join(prefix + line for line in with_other_numbers(part, seed).splitlines())
    assert read(fold(text, width)) == read(part)


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: fold.__name__)
def test_bounds_are_read_from_folded_lines_too(fold: Fold) -> None:
    for name in (
        "h200_vllm0.24_err-len-kv",
        "reports/cap-01-v1_estimate",
        "reports/cap-06-mamba",
        "reports/cfg-02-sel",
    ):
        plain, folded = first_failure(log(name)), first_failure(fold(log(name), 80))
        assert plain is not None
        assert folded is not None
        assert folded.bounds == plain.bounds


numbers = st.integers(min_value=1, max_value=999_999)


@given(st.sampled_from(["", *PREFIXES]), numbers, numbers)
def test_class_and_bound_do_not_depend_on_prefix_and_numbers(prefix: str, asked: int, bound: int) -> None:
    line = f"{prefix}ValueError: max_num_seqs ({asked}) exceeds available Mamba cache blocks ({bound}). Each decode ..."
    found = first_failure(line)
    assert found is not None
    assert (found.cause, found.facts["max_num_seqs_bound"]) == ("capacity.state_blocks", bound)
