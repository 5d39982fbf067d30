"""Which GPUs a process may use, by the forms of CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import pytest

from autotune.engine.gpus import Gpu, find, visible, wait_for_memory_back

GPUS = [
    Gpu(index=i, name="H", uuid=f"GPU-{i}{i}aa-bb", total_gib=80.0, driver="1", compute_capability="9.0")
    for i in range(3)
]


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        ("1, 2", [1, 2]),
        ("0,7,1", [0]),
        ("GPU-22aa-bb", [2]),
        ("GPU-1", [1]),
        ("GPU-", []),
    ],
)
def test_visible_devices(value: str | None, indices: list[int]) -> None:
    env = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert [gpu.index for gpu in visible(GPUS, env)] == indices


def test_a_name_that_fits_two_gpus_is_none() -> None:
    assert find(GPUS, "GPU-") is None


def test_nothing_has_to_come_back_where_nothing_was_measured() -> None:
    assert wait_for_memory_back({}, timeout_s=0) == {}
