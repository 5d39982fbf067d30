from __future__ import annotations

import optuna
import pytest
from search_problems import TOY

from autotune.search.draws import Draws, sampler_of
from autotune.search.telling import RULE_BROKEN


def test_what_is_refused_is_taught_to_the_next_draw_and_stays_out_of_the_study() -> None:
    whole = optuna.create_study(directions=["maximize"])
    for _ in range(12):
        trial = whole.ask()
        x = trial.suggest_float("x", 0.0, 1.0)
        trial.suggest_float("y", 0.0, 1.0)
        whole.tell(trial, x)
    draws = Draws.from_part(whole, whole.get_trials(), TOY, lambda draw: sampler_of("tpe", startup=8, seed=draw))
    for _ in range(5):
        trial, point = draws.draw()
        assert set(point) == {"x", "y"}
        draws.refuse(trial, RULE_BROKEN)
    assert len(whole.get_trials()) == 12
    inside = draws._study.get_trials()
    assert [t.constraints for t in inside[12:]] == [RULE_BROKEN.constraints] * 5


@pytest.mark.parametrize("name", ["tpe", "random"])
def test_a_draw_depends_on_the_seed_and_what_is_shown_alone(name: str) -> None:
    whole = optuna.create_study(directions=["maximize"])

    def first() -> object:
        return Draws.from_part(whole, [], TOY, lambda draw: sampler_of(name, startup=8, seed=draw)).draw()[1]  # type: ignore[arg-type]

    assert first() == first()
