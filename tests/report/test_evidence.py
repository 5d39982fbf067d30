from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.report.evidence import is_secret_name, one_line, shown_flags
from autotune.spec.config import FlagValue


@given(st.text(max_size=500), st.integers(min_value=2, max_value=300))
def test_any_text_becomes_one_printable_line_within_the_limit(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert line.isprintable()


@given(st.text(alphabet="abc xyz.,:=", max_size=200))
def test_plain_text_keeps_its_words(text: str) -> None:
    assert one_line(text, 400) == " ".join(text.split())


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mERROR\x1b[0m boom", "ERROR boom"),
        ("\x1b]0;owned\x07title", "title"),
        ("a\r\nb\tc", "a b c"),
        ("\u202eevil\u202c", "evil"),
        ("\x9b31mred", "red"),
    ],
)
def test_terminal_codes_leave_no_trace(raw: str, shown: str) -> None:
    assert one_line(raw) == shown


@pytest.mark.parametrize(
    "secret",
    [
        "hf_abcdefghijklmnop",
        "sk-abcdefghijklmnopqrstu",
        "AKIAIOSFODNN7EXAMPLE",
    ],
)
def test_what_looks_like_a_secret_is_redacted(secret: str) -> None:
    assert secret not in one_line(f"could not log in with {secret} at the hub")


@pytest.mark.parametrize("line", ["api_key=hunter22", "Authorization: Bearer abc.def", "https://me:pw123@host/x"])
def test_what_is_named_a_secret_is_redacted(line: str) -> None:
    shown = one_line(line)
    assert "hunter22" not in shown
    assert "abc.def" not in shown
    assert "pw123" not in shown


def test_a_line_of_ten_megabytes_is_cut_at_once() -> None:
    began = time.perf_counter()
    assert one_line("x\x1b[31m" * 2_000_000).endswith("…")
    assert time.perf_counter() - began < 0.2


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("api-key", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("max-num-batched-tokens", False),
        ("long-prefill-token-threshold", False),
        ("AWS_SECRET_ACCESS_KEY", True),
    ],
)
def test_secrets_are_known_by_their_names(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


def test_flags_are_shown_in_order_and_without_secrets() -> None:
    flags: dict[str, FlagValue] = {"b": True, "a": 1, "api-key": "x", "c": None}
    assert shown_flags(flags) == "a=1, api-key=<redacted>, b=true"
