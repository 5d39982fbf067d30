from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autotune.load.prefixes import PrefixCache, spoiled_prefix

SYSTEM = "You are a careful assistant of the city library. Answer in two sentences and name the shelf. " * 4


def test_hits_are_whole_blocks_of_what_prompts_begin_with() -> None:
    cache = PrefixCache(block_tokens=16)
    assert cache.admit([("a", 40), ("b", 10)]) == 0
    assert cache.admit([("a", 40), ("c", 10)]) == 32
    assert cache.admit([("a", 40), ("c", 10), ("d", 5)]) == 48


def test_the_last_token_is_never_a_hit() -> None:
    cache = PrefixCache(block_tokens=16)
    cache.admit([("a", 32)])
    assert cache.admit([("a", 32)]) == 16


def test_equal_parts_behind_different_ones_are_no_hits() -> None:
    cache = PrefixCache(block_tokens=1)
    cache.admit([("a", 8), ("x", 8)])
    assert cache.admit([("b", 8), ("x", 8)]) == 0


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=12), st.integers(1, 5))
def test_hits_are_those_of_the_tokens_themselves(prompts: list[list[int]], block: int) -> None:
    cache = PrefixCache(block_tokens=block)
    seen: set[tuple[int, ...]] = set()
    for prompt in prompts:
        blocks = 0
        while (blocks + 1) * block < len(prompt) and tuple(prompt[: (blocks + 1) * block]) in seen:
            blocks += 1
        assert cache.admit((token, 1) for token in prompt) == blocks * block
        seen.update(tuple(prompt[:end]) for end in range(1, len(prompt) + 1))


def test_a_date_in_front_of_a_system_prompt_is_found_where_it_begins_to_differ() -> None:
    texts = [f"Today is 2024-05-{day:02d}. {SYSTEM}Question {day}: why?" for day in range(10, 20)]
    found = spoiled_prefix(texts)
    assert found is not None
    assert found.position == len("Today is 2024-05-1")
    assert found.before.endswith("2024-05-1")
    assert found.variants[0].startswith("0. You") and found.variants[1].startswith("1. You")


def test_two_system_prompts_that_take_turns_are_each_looked_at_alone() -> None:
    texts = [f"{['A', 'B'][day % 2] * 90} {day:02d}:00. {SYSTEM}Why?" for day in range(24)]
    assert spoiled_prefix(texts) is not None
    assert spoiled_prefix([f"{['A', 'B'][day % 2] * 90}{SYSTEM} question {day}" for day in range(24)]) is None


def test_questions_behind_a_system_prompt_spoil_nothing() -> None:
    assert spoiled_prefix([f"{SYSTEM}Question {day}: why {day * day}?" for day in range(20)]) is None


def test_a_date_at_the_end_spoils_nothing() -> None:
    assert spoiled_prefix([f"{SYSTEM}Today is 2024-05-{day:02d}." for day in range(20)]) is None


@given(st.lists(st.text(max_size=200), max_size=6))
def test_any_texts_can_be_looked_at(texts: list[str]) -> None:
    found = spoiled_prefix(texts)
    assert found is None or 0 < found.share <= 1
