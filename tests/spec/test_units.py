import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.spec import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2 s", 2.0),
        ("150 ms", 0.15),
        ("150ms", 0.15),
        ("1 h", 3600.0),
        ("30 min", 1800.0),
        ("1 h 30 min", 5400.0),
        ("1h30m", 5400.0),
        ("1.5 h", 5400.0),
        ("0.5 d", 43200.0),
        ("80 us", 8e-5),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert units.duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "given_value", [2, 2.5, "2", "", "s", "2 parsecs", "1 h 30", "-1 s", True, None, ["2 s"], "2 s!"]
)
def test_a_duration_without_a_known_unit_is_refused_with_advice(given_value: object) -> None:
    with pytest.raises(ValueError, match=r"'2 s'|for example"):
        units.duration_s(given_value)


@given(
    st.floats(min_value=0.001, max_value=1e6),
    st.sampled_from([("ms", 0.001), ("s", 1.0), ("min", 60.0), ("h", 3600.0)]),
)
def test_number_and_unit_are_multiplied(number: float, unit: tuple[str, float]) -> None:
    assert units.duration_s(f"{number!r} {unit[0]}") == pytest.approx(number * unit[1])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64M", 64 * 1024**2),
        ("64m", 64_000_000),
        ("24 GiB", 24 * 1024**3),
        ("24 GB", 24 * 10**9),
        ("1.5K", 1536),
        ("512 B", 512),
        (4096, 4096),
    ],
)
def test_sizes_are_binary_with_a_capital_letter_as_vllm_reads_them(text: object, size: int) -> None:
    assert units.size_bytes(text) == size


def test_a_size_of_an_unknown_unit_says_which_there_are() -> None:
    with pytest.raises(ValueError, match="GiB"):
        units.size_bytes("24 gigs")


@pytest.mark.parametrize(("text", "rate"), [("4 /s", 4.0), ("2.5 rps", 2.5), ("120 /min", 2.0), ("500 tok/s", 500.0)])
def test_a_rate_is_read_per_second(text: str, rate: float) -> None:
    assert units.rate_per_s(text) == pytest.approx(rate)


@pytest.mark.parametrize("given_value", [4, "4", "4 s", "fast"])
def test_a_bare_number_is_no_rate(given_value: object) -> None:
    with pytest.raises(ValueError, match="/s"):
        units.rate_per_s(given_value)


@pytest.mark.parametrize(("given_value", "share"), [("5 %", 0.05), (0.05, 0.05), ("0.05", 0.05), (1, 1.0)])
def test_a_share_is_a_number_or_a_percentage(given_value: object, share: float) -> None:
    assert units.share(given_value) == pytest.approx(share)


@pytest.mark.parametrize("given_value", [5, "150 %", "5 s", True])
def test_a_share_outside_0_and_1_is_refused(given_value: object) -> None:
    with pytest.raises(ValueError, match=r"share|number"):
        units.share(given_value)
