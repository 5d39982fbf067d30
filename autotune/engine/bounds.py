"""What a failure implies for single flags: on this model, GPU and vLLM, with the other flags as they were. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from autotune.spec.verdict import Bound

Numbers = Mapping[str, float]
Words = Mapping[str, tuple[str, ...]]


def implied_bounds(cause: str, numbers: Numbers, words: Words) -> tuple[Bound, ...]:
    """Most useful first. Only what follows from the message's own figures: no bound is a guess."""
    match cause:
        case "capacity.kv_too_small":
            found = _kv_too_small(numbers)
        case "capacity.no_kv_blocks":
            found = _no_kv_blocks(numbers)
        case "capacity.state_blocks":
            found = _at_most("max-num-seqs", numbers.get("max_num_seqs_bound"))
        case "oom.sampler_warmup":
            found = _below("max-num-seqs", numbers.get("max_num_seqs"))
        case "oom.graph_capture" | "oom.runtime":
            found = _below("gpu-memory-utilization", numbers.get("utilization"))
        case "infra.gpu_busy":
            found = _free_share(numbers)
        case "config.invalid":
            found = _invalid(numbers, words)
        case "config.conflict":
            found = _conflict(numbers)
        case "config.unsupported":
            found = _unsupported(numbers, words)
        case _:
            found = iter(())
    return tuple(found)


def _at_most(flag: str, value: float | None) -> Iterator[Bound]:
    if value is not None:
        yield Bound(flag=flag, at_most=value)


def _below(flag: str, value: float | None) -> Iterator[Bound]:
    if value is not None:
        yield Bound(flag=flag, below=value)


def _kv_too_small(numbers: Numbers) -> Iterator[Bound]:
    """vLLM's own estimate, the tokens it has room for, or the share of the asked length that fits (rounded down)."""
    stated = numbers.get("max_model_len_bound", numbers.get("kv_cache_tokens"))
    if stated is None and numbers.get("needed_gib") and numbers.get("max_model_len"):
        available_gib = max(0.0, numbers.get("available_gib", 0.0))
        stated = float(math.floor(numbers["max_model_len"] * available_gib / numbers["needed_gib"]))
    if stated:
        yield Bound(flag="max-model-len", at_most=stated)
    missing_gib = numbers.get("needed_gib", 0.0) - numbers.get("available_gib", 0.0)
    if "available_gib" in numbers and missing_gib > 0:
        yield from _more_memory(missing_gib, numbers)


def _no_kv_blocks(numbers: Numbers) -> Iterator[Bound]:
    missing_gib = numbers.get("needed_gib", 0.0) - numbers.get("available_gib", 0.0)
    if "available_gib" in numbers and missing_gib > 0:
        yield from _more_memory(missing_gib, numbers)
        if "utilization" not in numbers and numbers.get("device_gib") and numbers.get("weights_gib"):
            yield Bound(flag="gpu-memory-utilization", above=_down(numbers["weights_gib"] / numbers["device_gib"]))


def _more_memory(missing_gib: float, numbers: Numbers) -> Iterator[Bound]:
    """As a share where share and device are known, else in GiB of the device. None where no share would do."""
    share, device_gib = numbers.get("utilization"), numbers.get("device_gib")
    if "device_gib_estimated" in numbers:  # off by a few per cent; a bound must not be too high
        device_gib = numbers["device_gib_estimated"] * 1.03
    if share is None or not device_gib:
        yield Bound(flag="gpu-memory-utilization", raise_by_gib=round(missing_gib, 2))
    elif share + missing_gib / device_gib < 1:
        yield Bound(flag="gpu-memory-utilization", above=_down(share + missing_gib / device_gib))


def _free_share(numbers: Numbers) -> Iterator[Bound]:
    if numbers.get("device_gib") and "free_gib" in numbers:
        share = _down(numbers["free_gib"] / numbers["device_gib"])
        yield Bound(flag="gpu-memory-utilization", at_most=share, when="the memory stays taken")


def _down(share: float) -> float:
    return math.floor(share * 1e4) / 1e4


def _invalid(numbers: Numbers, words: Words) -> Iterator[Bound]:
    yield from _at_most("max-model-len", numbers.get("max_model_len_bound"))
    for flag in words.get("unknown_flag", ()):
        yield Bound(flag=flag.lstrip("-"), unknown=True)
    if "uncompiled" in words:
        yield Bound(flag="optimization-level", at_least=1, when="a setting needs torch.compile")
    for flag in words.get("flag", ()):
        name = flag.lstrip("-")
        if words.get("choices"):
            yield Bound(flag=name, one_of=words["choices"])
        elif words.get("value"):
            yield Bound(flag=name, none_of=words["value"])


def _conflict(numbers: Numbers) -> Iterator[Bound]:
    for name, flag in (("max_num_seqs", "max-num-seqs"), ("max_model_len", "max-model-len")):
        if "max_num_batched_tokens" in numbers and name in numbers:
            when = f"{flag} is {numbers[name]:.0f}"
            if name == "max_model_len":
                when += " and chunked prefill is off"
            yield Bound(flag="max-num-batched-tokens", at_least=numbers[name], when=when)


def _unsupported(numbers: Numbers, words: Words) -> Iterator[Bound]:
    if "reasons" in words:
        yield from _no_backend(words)
    if words.get("dtypes"):
        method = words.get("quantization", ("this",))[0]
        yield Bound(flag="dtype", one_of=words["dtypes"], when=f"quantization is {method}")
    if words.get("method"):
        yield Bound(flag="quantization", none_of=words["method"])
    if words.get("speculative_method"):
        yield Bound(flag="speculative-config.method", none_of=words["speculative_method"])
    if "pipeline" in words:
        when = "speculative-config is given" if "with" in words else None
        yield Bound(flag="pipeline-parallel-size", at_most=1, when=when)
    if "gpus" in numbers:
        yield Bound(flag="tensor-parallel-size x pipeline-parallel-size", at_most=numbers["gpus"])
    if "heads" in numbers:
        yield Bound(flag="tensor-parallel-size", divides=numbers["heads"])


def _no_backend(words: Words) -> Iterator[Bound]:
    """A value that every backend rejects is dead; one that some take is bound to those, so nothing else is blamed."""
    asked = dict(pair.split("=", 1) for pair in words.get("asked", ()) if "=" in pair)
    rejected: dict[str, set[str]] = {}
    backends: list[str] = []
    for entry in words["reasons"]:
        backend, _, reasons = entry.partition(": ")
        backends.append(backend)
        for option in re.findall(r"(\w+) not supported", reasons):
            rejected.setdefault(option, set()).add(backend)
    everywhere = [option for option, by in rejected.items() if len(by) == len(backends)]
    for option in everywhere:
        yield Bound(flag=option.replace("_", "-"), none_of=(asked.get(option, "?"),))
    for option, by in rejected.items():
        if option not in everywhere:
            when = f"{option.replace('_', '-')} is {asked.get(option, '?')}"
            taken_by = tuple(backend for backend in backends if backend not in by)
            yield Bound(flag="attention-backend", one_of=taken_by, when=when)
