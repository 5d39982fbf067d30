import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_catalogue import small_catalogue

from autotune.spec.catalogue import Catalogue, UnknownFlag, answer_changing
from autotune.spec.flag import Flag, IllegalValue

CATALOGUE = small_catalogue()


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        ("max_num_seqs", "write max-num-seqs"),
        ("maxNumSeqs", "write max-num-seqs"),
        ("--max-num-seqs", "write max-num-seqs"),
        ("max-num-seq", "did you mean max-num-seqs"),
        ("max-num-batch-tokens", "did you mean max-num-batched-tokens"),
        ("gpu-memory-utilisation", "did you mean gpu-memory-utilization"),
        ("memory-utilization", "did you mean gpu-memory-utilization"),
        ("no-enforce-eager", "write enforce-eager: false"),
        ("tp", "write tensor-parallel-size"),
        ("cudagraph-mode", "did you mean compilation-config.cudagraph_mode"),
        ("compilation-config.cudagraph-mode", "did you mean compilation-config.cudagraph_mode"),
        ("compilation-config.zzzz", "its keys are"),
        ("max-num-seqs.inner", "write max-num-seqs"),
        ("swap-space", "remove it"),
        ("max-seq-len-to-capture", "use max-cudagraph-capture-size"),
        ("zzzz", "vtune flags"),
    ],
)
def test_a_flag_that_isnt_there_comes_with_the_nearest_spelling(written: str, remedy: str) -> None:
    with pytest.raises(UnknownFlag) as caught:
        CATALOGUE.find(written)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    "name", ["port", "api-key", "host", "model", "served-model-name", "ssl-certfile", "chat-template"]
)
def test_flags_that_a_space_must_not_set_say_so(name: str) -> None:
    with pytest.raises(UnknownFlag, match=r"isn't the space's|API server"):
        CATALOGUE.find(name)


def test_a_removed_flag_says_that_it_was_removed() -> None:
    with pytest.raises(UnknownFlag, match="no longer"):
        CATALOGUE.find("num-scheduler-steps")


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("max-num-seqs", 64, 64),
        ("max-num-batched-tokens", "8K", 8192),
        ("max-num-batched-tokens", "8k", 8000),
        ("kv-cache-memory-bytes", "64 MiB", 64 * 1024**2),
        ("gpu-memory-utilization", 1, 1.0),
        ("enforce-eager", True, True),
        ("enforce-eager", False, False),
        ("disable-log-stats", False, None),
        ("kv-cache-dtype", "fp8", "fp8"),
        ("kv-cache-dtype", None, None),
        ("max-model-len", "auto", "auto"),
        ("compilation-config", '{"mode": 3}', '{"mode": 3}'),
        ("compilation-config.cudagraph_mode", "FULL", "FULL"),
        ("speculative-config.num_speculative_tokens", 3, "3"),
    ],
)
def test_a_legal_value_becomes_what_the_engine_gets(name: str, value: object, parsed: object) -> None:
    assert CATALOGUE.find(name).parse(value) == parsed


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("max-num-seqs", "64", "without quotes"),
        ("max-num-seqs", 64.0, "write 64"),
        ("max-num-seqs", True, "whole number"),
        ("max-num-seqs", 0, "1 or more"),
        ("max-num-seqs", -5, "1 or more"),
        ("gpu-memory-utilization", 1.5, "1 or less"),
        ("gpu-memory-utilization", 92, "1 or less"),
        ("gpu-memory-utilization", "0.9", "without quotes"),
        ("gpu-memory-utilization", float("nan"), "number"),
        ("enforce-eager", "on", "true or false"),
        ("enforce-eager", 1, "true or false"),
        ("kv-cache-dtype", "fp9", "did you mean 'fp8'"),
        ("kv-cache-dtype", True, "one of"),
        ("compilation-config", "FULL", "with a dot"),
        ("cudagraph-capture-sizes", 4, "max-cudagraph-capture-size"),
        ("compilation-config.cudagraph_mode", "full", "did you mean 'FULL'"),
    ],
)
def test_an_illegal_value_says_what_to_write(name: str, value: object, remedy: str) -> None:
    with pytest.raises(IllegalValue) as caught:
        CATALOGUE.find(name).parse(value)
    assert remedy in caught.value.remedy


@given(
    st.sampled_from(sorted(CATALOGUE.flags)),
    st.integers() | st.text(max_size=8) | st.booleans() | st.floats() | st.none(),
)
def test_whatever_is_parsed_can_be_parsed_again_to_the_same(name: str, value: object) -> None:
    flag = CATALOGUE.find(name) if name != "model" else Flag(name=name, kind="str")
    try:
        once = flag.parse(value)
    except IllegalValue:
        return
    assert flag.parse(once) == once


def test_defaults_hold_flags_and_the_keys_of_json_flags() -> None:
    defaults = CATALOGUE.defaults()
    assert defaults["max-num-seqs"] == 128
    assert defaults["compilation-config.cudagraph_mode"] == "FULL_AND_PIECEWISE"
    assert "max-model-len" not in defaults


def test_a_catalogue_survives_its_way_through_the_cache() -> None:
    assert Catalogue.from_json(json.loads(json.dumps(CATALOGUE.to_json()))) == CATALOGUE


@pytest.mark.parametrize("broken", [{}, {"flags": {}}, {"flags": [], "server_flags": []}, {"flags": {"x": {}}}])
def test_a_broken_cache_is_told_from_a_good_one(broken: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Catalogue.from_json(broken)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("quantization", True),
        ("kv-cache-dtype", True),
        ("speculative-config.method", True),
        ("max-num-seqs", False),
        ("compilation-config.cudagraph_mode", False),
    ],
)
def test_flags_that_may_change_answers_are_known(name: str, changes: bool) -> None:
    assert answer_changing(name) is changes
