from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autotune.run.packing import TURN, Packing


def test_a_larger_engine_starts_only_when_enough_devices_of_one_node_are_free() -> None:
    packing = Packing(nodes={"a": 2, "b": 2})
    packing.start("t0", 1)
    packing.place("t0", "a")
    packing.start("t1", 1)
    packing.place("t1", "b")
    assert not packing.fits(2)
    packing.end("t0")
    assert packing.fits(2)


def test_a_trial_whose_node_is_not_known_yet_may_sit_on_any_node() -> None:
    packing = Packing(nodes={"a": 2, "b": 2})
    packing.start("t0", 1)
    assert not packing.fits(2)
    packing.place("t0", "a")
    assert packing.fits(2)


def test_a_turn_lasts_at_least_four_trials_per_slot() -> None:
    packing = Packing(nodes={"a": 2})
    sizes = []
    for number in range(TURN * 2):
        packing.start(str(number), 1)
        sizes.append(packing.wanted())
        packing.end(str(number))
    assert sizes == [1] * (TURN * 2 - 1) + [None]


def test_concurrency_caps_trials_whatever_is_free() -> None:
    packing = Packing(nodes={"a": 8}, concurrency=1)
    packing.start("t0", 1)
    assert not packing.fits(1)


@given(
    nodes=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 8), min_size=1),
    wishes=st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=60),
)
def test_devices_are_never_oversubscribed(nodes: dict[str, int], wishes: list[tuple[int, bool]]) -> None:
    packing = Packing(nodes=nodes)
    held: dict[str, tuple[str, int]] = {}
    for number, (size, ends) in enumerate(wishes):
        if ends and held:
            packing.end(next(iter(held)))
            held.pop(next(iter(held)))
        if packing.fits(size):
            free = {n: total - sum(s for where, s in held.values() if where == n) for n, total in nodes.items()}
            node = next(n for n, room in free.items() if room >= size)  # wherever Ray may put it, there is room
            packing.start(str(number), size)
            packing.place(str(number), node)
            held[str(number)] = (node, size)
    for node, total in nodes.items():
        assert sum(size for where, size in held.values() if where == node) <= total
