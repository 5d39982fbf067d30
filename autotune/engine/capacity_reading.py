"""Where a GPU's memory went, as a start log tells it, in the terms of those who tune by hand. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from autotune.spec.measurement import StartFacts

Band = Literal["weights dominate", "small", "reasonable", "comfortable", "ample"]
TotalIs = Literal["device", "device, estimated", "weights + KV cache + graphs"]
# Lower end of the KV cache's share, from two practitioners' guides: below 0.2 the weights dominate, 0.4 to 0.6 is
# reasonable, above 0.7 is ample. What lies between is named after its neighbours.
_BANDS: tuple[tuple[float, Band, str], ...] = (
    (0.7, "ample", "there is room to spare; watch long sequences, and consider fewer GPUs or a larger model"),
    (0.6, "comfortable", "more than most loads need"),
    (0.4, "reasonable", "a sound balance between weights and KV cache"),
    (0.2, "small", "concurrency may be limited by the KV cache: see the maximum concurrency"),
    (0.0, "weights dominate", "quantize the weights, use more GPUs per engine, or lower max-model-len"),
)
_LENGTH = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReading:
    """GiB per GPU; shares of `total_gib`. None = the log doesn't say."""

    total_gib: float
    total_is: TotalIs
    weights_gib: float | None
    kv_cache_gib: float
    graphs_gib: float | None
    weights_share: float | None
    kv_share: float
    graphs_share: float | None
    band: Band
    advice: str
    kv_cache_tokens: int | None
    max_model_len: int | None
    max_concurrency: float | None
    """Requests of max-model-len that the cache holds at once."""


def capacity_reading(
    log: str, facts: StartFacts, *, device_gib: float | None, estimated_gib: float | None
) -> CapacityReading | None:
    """None where the log doesn't give the KV cache. `device_gib`, or else `estimated_gib`, is the GPU's memory."""
    kv = facts.kv_cache_gib
    if kv is None:
        return None
    known = (facts.weights_gib or 0.0) + max(kv, 0.0) + (facts.graphs_gib or 0.0)
    total_is: TotalIs = "device"
    # A device smaller than what is in it is no device of this log.
    if device_gib is not None and device_gib >= known:
        total = device_gib
    elif estimated_gib is not None and estimated_gib >= known:
        total, total_is = round(estimated_gib, 1), "device, estimated"
    else:
        total, total_is = known, "weights + KV cache + graphs"
        if facts.weights_gib is None or total <= 0:
            return None
    share = max(kv, 0.0) / total
    band, advice = next((band, advice) for lowest, band, advice in _BANDS if share >= lowest)
    if band == "weights dominate" and (facts.weights_gib is None or facts.weights_gib <= kv):
        _, band, advice = _BANDS[-2]  # little memory was given to it (a low utilization, a CPU's cache of a fixed size)
    length = _LENGTH.search(log)
    return CapacityReading(
        total_gib=round(total, 2),
        total_is=total_is,
        weights_gib=facts.weights_gib,
        kv_cache_gib=kv,
        graphs_gib=facts.graphs_gib,
        weights_share=_share(facts.weights_gib, total),
        kv_share=round(share, 4),
        graphs_share=_share(facts.graphs_gib, total),
        band=band,
        advice=advice,
        kv_cache_tokens=facts.kv_cache_tokens,
        max_model_len=int(length[1].replace(",", "")) if length else None,
        max_concurrency=facts.max_concurrency,
    )


def _share(gib: float | None, total_gib: float) -> float | None:
    return None if gib is None else round(gib / total_gib, 4)
