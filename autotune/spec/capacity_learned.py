"""The estimate of an engine's KV cache, corrected by what engines of the same slice have logged, and how sure it is.

A slice is a model, a kind of GPU and a version of vLLM: there the estimate is wrong by much the same amount whatever
the flags. What is corrected is that amount, so one start says most of what there is to say.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.spec.capacity import Capacity, estimate, with_kv
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.measurement import StartFacts
from autotune.spec.model import ModelShape

_COLD_GIB = 0.5
_COLD_OF_WEIGHTS = 0.03
_COLD_OF_OTHER = 0.25
"""Before any start of a slice: half a GiB, and besides 3 % of the weights (layers that quantization leaves out, tied
embeddings) and a quarter of what else is needed. Chosen, not fitted: other GPUs differ by up to 0.5 GiB in the little
that is known of them (benchmarks/memory_model/public.json)."""
_WARM_GIB = 0.25
"""After a start of the same layout: of the benchmark's pairs (benchmarks/memory_model) none is further off than 0.2."""
_LAYOUT = ("tensor-parallel-size", "pipeline-parallel-size", "quantization", "enforce-eager")
"""What changes the kinds of things in memory, and not only how much of each."""
_NOT_JUDGED = ("num-gpu-blocks-override", "cpu-offload-gb", "hf-overrides")
"""Flags that make room, or another model, in ways that the estimate doesn't know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStart:
    """A start of the slice that got as far as sizing its KV cache, whether or not it then served."""

    config: EngineConfig
    facts: StartFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Miss:
    """By how much a start's KV cache was larger than estimated."""

    layout: tuple[FlagValue, ...]
    gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """`starts`: how many it was corrected by. `pessimistic` and `optimistic` are the ends of the interval."""

    expected: Capacity
    pessimistic: Capacity
    optimistic: Capacity
    starts: int


def predict(
    config: EngineConfig,
    shape: ModelShape,
    *,
    gpu_gib: float,
    defaults: Mapping[str, FlagValue] | None = None,
    seen: Sequence[SeenStart] = (),
) -> Prediction:
    """`seen`: starts of this slice, of any flags. Those of the same layout (parallelism, quantization, graphs or none)
    are taken where there are any; others correct it too, and leave it half as sure.
    """
    missed = [miss for one in seen if (miss := _miss(one, shape, gpu_gib=gpu_gib, defaults=defaults)) is not None]
    return _corrected(config, estimate(config, shape, gpu_gib=gpu_gib, defaults=defaults), missed)


def _corrected(config: EngineConfig, found: Capacity, missed: Sequence[_Miss]) -> Prediction:
    if _fixed(config):
        return _prediction(found, kv_gib=found.kv_gib, margin_gib=0.0, starts=0)
    cold_gib = _COLD_GIB + _COLD_OF_WEIGHTS * found.weights_gib + _COLD_OF_OTHER * found.other_gib
    if not missed:
        return _prediction(found, kv_gib=found.kv_gib, margin_gib=cold_gib, starts=0)
    alike = [one.gib for one in missed if one.layout == _layout(config)]
    misses = alike or [one.gib for one in missed]
    miss = statistics.median(misses)
    margin_gib = max(_WARM_GIB if alike else cold_gib / 2, *(abs(one - miss) for one in misses))
    return _prediction(found, kv_gib=found.kv_gib + miss, margin_gib=margin_gib, starts=len(misses))


def doomed(config: EngineConfig, prediction: Prediction) -> str | None:
    """Why this candidate can't start, where even the optimistic end of the prediction fails; None where it may.

    A max-model-len that vLLM chooses itself (`auto`, -1) fits whatever there is.
    """
    if any(config.flags.get(name) for name in _NOT_JUDGED):
        return None
    best = prediction.optimistic
    if best.kv_gib <= 0:
        return (
            f"no memory is left for a KV cache: even by an optimistic estimate {-best.kv_gib:.1f} GiB are "
            f"missing per GPU (weights {best.weights_gib:.1f} GiB)"
        )
    length = config.flags.get("max-model-len")
    if length == "auto" or length == -1 or best.max_concurrency is None or best.max_concurrency >= 1:
        return None
    return (
        f"the KV cache can't hold one request of max-model-len {best.max_model_len}: even by an optimistic estimate it "
        f"has {best.kv_gib:.1f} GiB per GPU, {best.kv_tokens} tokens"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a search knows of memory: enough to reject candidates that can't start. Immutable; every start that got as
    far as sizing its KV cache makes a better one (`after`)."""

    shape: ModelShape
    gpu_gib: float
    defaults: Mapping[str, FlagValue]
    missed: tuple[_Miss, ...] = ()

    def after(self, start: SeenStart) -> Memory:
        """The same, corrected by one more start of the slice. Another model than the shape's teaches nothing."""
        miss = None
        if start.config.flags.get("model") is None:
            miss = _miss(start, self.shape, gpu_gib=self.gpu_gib, defaults=self.defaults)
        return self if miss is None else replace(self, missed=(*self.missed, miss))

    def doomed(self, config: EngineConfig) -> str | None:
        """See `doomed` of this module. Another model than the shape's isn't judged: its shape isn't known."""
        if config.flags.get("model") is not None:
            return None
        found = estimate(config, self.shape, gpu_gib=self.gpu_gib, defaults=self.defaults)
        return doomed(config, _corrected(config, found, self.missed))


def _prediction(found: Capacity, *, kv_gib: float, margin_gib: float, starts: int) -> Prediction:
    return Prediction(
        expected=with_kv(found, kv_gib=kv_gib),
        pessimistic=with_kv(found, kv_gib=kv_gib - margin_gib),
        optimistic=with_kv(found, kv_gib=kv_gib + margin_gib),
        starts=starts,
    )


def _miss(
    start: SeenStart, shape: ModelShape, *, gpu_gib: float, defaults: Mapping[str, FlagValue] | None
) -> _Miss | None:
    """None where the start says nothing: no KV cache was sized, or its size was given."""
    if start.facts.kv_cache_gib is None or _fixed(start.config):
        return None
    expected = estimate(start.config, shape, gpu_gib=gpu_gib, defaults=defaults).kv_gib
    return _Miss(layout=_layout(start.config), gib=start.facts.kv_cache_gib - expected)


def _layout(config: EngineConfig) -> tuple[FlagValue, ...]:
    flags = config.flags
    return tuple(flags.get(name) or (1 if name.endswith("-size") else None) for name in _LAYOUT)


def _fixed(config: EngineConfig) -> bool:
    return isinstance(config.flags.get("kv-cache-memory-bytes"), int)
