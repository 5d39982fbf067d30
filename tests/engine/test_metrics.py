"""/metrics across versions: aliases, overlaps, and what is missing."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from captured import metrics
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.metrics import ALIASES, parse_metrics

NAMES = sorted({name for names in ALIASES.values() for name in names})


@pytest.mark.parametrize("name", ["cpu_vllm0.32", "h200_vllm0.24_base"])
def test_a_real_page_has_every_metric(name: str) -> None:
    assert None not in asdict(parse_metrics(metrics(name), at_s=1.0)).values()


def test_counters_of_a_real_page_are_its_totals() -> None:
    sample = parse_metrics(metrics("cpu_vllm0.32"), at_s=1.0)
    assert (sample.prompt_tokens, sample.generation_tokens, sample.requests_done) == (25629, 12800, 200)
    assert (sample.prefix_queries, sample.prefix_hits) == (25629, 768)


@pytest.mark.parametrize(
    "text",
    [
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.42\n',
        'vllm:kv_cache_usage_perc{engine="0"} 0.42\n',
        'vllm:gpu_cache_usage_perc{engine="0"} 0.42\nvllm:kv_cache_usage_perc{engine="0"} 0.42\n',
    ],
)
def test_old_new_and_both_spellings_say_the_same(text: str) -> None:
    assert parse_metrics(text, at_s=0).kv_cache_usage == 0.42


def test_a_metric_that_is_not_there_is_none_never_zero() -> None:
    sample = parse_metrics('vllm:num_requests_running{engine="0"} 3.0\n', at_s=0)
    assert (sample.running, sample.kv_cache_usage, sample.preemptions) == (3.0, None, None)


def test_several_engines_add_up_and_the_fullest_cache_counts() -> None:
    text = (
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.9\n'
    )
    sample = parse_metrics(text, at_s=0)
    assert (sample.running, sample.kv_cache_usage) == (7, 0.9)


@given(st.dictionaries(st.sampled_from(NAMES), st.floats(min_value=0, max_value=1e12)))
def test_exactly_the_metrics_on_the_page_are_read(page: dict[str, float]) -> None:
    text = "".join(f'{name}{{engine="0"}} {value!r}\n' for name, value in page.items())
    sample = asdict(parse_metrics(text, at_s=0))
    for name, aliases in ALIASES.items():
        expected = next((page[alias] for alias in aliases if alias in page), None)
        assert sample[name] == expected
