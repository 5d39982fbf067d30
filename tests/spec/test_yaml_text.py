import string

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UserError
from autotune.spec.yaml_text import parse_yaml

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(string.ascii_letters + " :#-", max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_letters, min_size=1), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("No", "No"),
        ("true", True),
        ("1e-3", 0.001),
        ("0.9", 0.9),
        ("64", 64),
        ("010", 10),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("'64'", "64"),
        ("64M", "64M"),
        ("null", None),
        ("", None),
    ],
)
def test_scalars_keep_the_type_that_people_mean(text: str, value: object) -> None:
    found = parse_yaml(f"key: {text}", file="x.yaml").value["key"]
    assert (type(found), found) == (type(value), value)


@given(st.dictionaries(st.text(string.ascii_letters, min_size=1, max_size=6), values, min_size=1, max_size=4))
def test_what_yaml_writes_is_read_back(document: dict[str, object]) -> None:
    assert parse_yaml(yaml.safe_dump(document), file="x").value == document


def test_a_key_given_twice_is_an_error_with_both_lines() -> None:
    with pytest.raises(UserError, match=r"x.yaml:4: search.max-num-seqs: .*first in line 2") as caught:
        parse_yaml("search:\n  max-num-seqs: [1]\n  other: 1\n  max-num-seqs: [2]\n", file="x.yaml")
    assert caught.value.remedy == "keep one of them"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2", r"x.yaml:\d.*not YAML"),
        ("a:\n\t- 1", r"x.yaml:2.*not YAML"),
        ("a: b: c", r"x.yaml:1.*not YAML"),
        ("", "empty"),
        ("# nothing but a comment\n", "empty"),
        ("- a\n- b\n", "must be a mapping"),
        ("just text", "must be a mapping"),
        ("a: \x00", "not YAML"),
        ("a: &x [*x]", "refers to itself"),
        ("a: *nowhere", "not YAML"),
        ("a: !!python/object:os.system 1", "tag"),
        ("? [1, 2]\n: 3", "key must be text"),
    ],
)
def test_text_that_cant_be_used_is_one_error_with_its_place(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_yaml(text, file="x.yaml")


def test_aliases_that_grow_without_end_are_cut_off() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)]
    with pytest.raises(UserError, match="grows without end"):
        parse_yaml("\n".join(lines), file="x")


def test_an_alias_repeats_a_value() -> None:
    assert parse_yaml("a: &one {x: 1}\nb: *one", file="x").value == {"a": {"x": 1}, "b": {"x": 1}}
