"""What is asked of vLLM about a space, and what becomes of its answers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "spec"))

from spec_catalogue import problem

from autotune.engine.validator import Refused, Unknown, Valid, Validity
from autotune.report.validation import validated, validation_form
from autotune.spec.config import EngineConfig

VALID = Valid(effective={}, took_ms=5.0)


def refuses_sixteen(config: EngineConfig) -> Validity:
    if config.flags.get("max-num-seqs") == 16:
        return Refused(cause="config.conflict", evidence="no sixteen", took_ms=7.0)
    return VALID


def test_what_is_refused_is_named_by_its_change_from_the_default() -> None:
    form = validation_form(validated(problem(), refuses_sixteen))
    assert form["refused"] == [{"change": "max-num-seqs=16", "class": "config.conflict", "evidence": "no sixteen"}]
    assert (form["unknown"], form["not_asked"], form["left_out"], form["median_ms"]) == ([], None, 0, 5.0)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Refused(cause="config.invalid", evidence="no such model", took_ms=1.0), "the default itself is refused"),
        (Unknown(reason="the process is lost"), "the process is lost"),
    ],
)
def test_without_an_accepted_default_nothing_else_is_asked(answer: Validity, why: str) -> None:
    asked: list[EngineConfig] = []

    def says(config: EngineConfig) -> Validity:
        asked.append(config)
        return answer

    made = validated(problem(), says)
    assert (len(asked), made.not_asked) == (1, why)


def test_the_rest_of_a_large_space_is_counted() -> None:
    whole = validated(problem(), refuses_sixteen)
    some = validated(problem(), refuses_sixteen, most=3)
    assert len(some.asked) == 3
    assert some.left_out == len(whole.asked) - 3
