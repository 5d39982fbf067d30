from __future__ import annotations

import pytest

from benchmarks.aa import searches

pytestmark = pytest.mark.timeout(30)


def test_where_there_is_nothing_to_find_next_to_nothing_is_found() -> None:
    assert sum(found.better for found in searches(40, cv=0.05, effect=0.0)) <= 5


def test_a_candidate_ten_percent_better_is_found_through_three_percent_of_noise() -> None:
    assert sum(found.right for found in searches(20, cv=0.03, effect=0.10)) >= 16


def test_a_confirmation_keeps_within_six_minutes_of_a_cpu_search() -> None:
    assert all(found.runs * 7.0 <= 360.0 for found in searches(20, cv=0.3, effect=0.0))
