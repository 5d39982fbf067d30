"""Batch sizes for which vLLM captures CUDA graphs unless it is told others, and what lies between them.

1, 2, 4, then multiples of 8 up to 256 and of 16 above (vllm/config/vllm.py, `_set_cudagraph_sizes`). A busy engine runs
exactly max-num-seqs sequences: where that is off this grid, its largest batches have no full graph and run slower
(https://github.com/vllm-project/vllm/pull/57355).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from autotune.spec.catalogue import release
from autotune.spec.config import FlagValue
from autotune.spec.space import Bundles, Choice, Dimension, FloatRange, IntRange, SearchSpace

_LARGEST = 512
"""Larger batches have no graph (vLLM's own default of max-cudagraph-capture-size at most), on no grid."""

GRID: tuple[int, ...] = (1, 2, 4, *range(8, 256, 8), *range(256, _LARGEST + 1, 16))

_SEQUENCES = "max-num-seqs"
_OWN_GRAPH_SINCE = (0, 32)
"""vLLM 0.32 captures a graph for max-num-seqs itself, 0.24 doesn't; the releases between weren't looked at."""

_LIMITS = ("max-cudagraph-capture-size", "compilation-config.max_cudagraph_capture_size")
"""One that is off the grid is truncated to the next size below, in every release."""

_OTHER_GRAPHS = (
    "cudagraph-capture-sizes",
    "compilation-config",
    "compilation-config.cudagraph_capture_sizes",
    # Sizes then count tokens, several a sequence.
    "speculative-config",
    "spec-method",
    "spec-model",
    "spec-tokens",
)
_SHOWN = 6


def off_grid(flags: Mapping[str, FlagValue], *, vllm_version: str) -> tuple[str, ...]:
    """What of an engine on GPUs lies between the sizes, each a sentence with the nearest ones; empty for one without
    graphs or with sizes of its own."""
    if not _graphs_by_default(flags):
        return ()
    return tuple(
        f"{name} {size} lies between sizes that CUDA graphs are captured for, "
        f"{' and '.join(map(str, _around(size)))}: {_effect(name)}"
        for name in _judged(vllm_version)
        if isinstance(size := flags.get(name), int) and _is_off(size)
    )


def grid_notices(space: SearchSpace, *, platform: str, vllm_version: str) -> tuple[str, ...]:
    """One per searched or fixed flag that has values off the grid; none on CPUs, and none where no candidate takes its
    graphs from the grid."""
    if platform == "cpu" or not _graphs_by_default(space.fixed):
        return ()
    notices = list(off_grid(space.fixed, vllm_version=vllm_version))
    for dimension in space.dimensions:
        for name in _judged(vllm_version):
            off, on = _split(dimension, name)
            if off:
                notices.append(
                    f"{name} {_few(off)} of this space {'lies' if len(off) == 1 else 'lie'} between sizes that CUDA "
                    f"graphs are captured for: {_effect(name)}, and the response isn't smooth. On that grid are "
                    f"{_few(on)}{_remedy(dimension)}"
                )
    return tuple(notices)


def largest_graph(flags: Mapping[str, FlagValue], *, max_num_seqs: int) -> int:
    """Tokens in the largest batch that has a CUDA graph; 0 without graphs (vllm/config/vllm.py: twice max-num-seqs, at
    most 512, unless it is given)."""
    if flags.get("enforce-eager") is True or flags.get("compilation-config.cudagraph_mode") == "NONE":
        return 0
    given = next((size for name in _LIMITS if isinstance(size := flags.get(name), int)), None)
    limit = min(2 * max_num_seqs, _LARGEST) if given is None else given
    return max((size for size in GRID if size <= limit), default=0)


def _judged(vllm_version: str) -> tuple[str, ...]:
    return _LIMITS if release(vllm_version) >= _OWN_GRAPH_SINCE else (_SEQUENCES, *_LIMITS)


def _graphs_by_default(flags: Mapping[str, FlagValue]) -> bool:
    named = {name for name, value in flags.items() if value is not None}
    return not (
        flags.get("enforce-eager") is True
        or flags.get("compilation-config.cudagraph_mode") == "NONE"
        or named.intersection(_OTHER_GRAPHS)
        or any(name.startswith("speculative-config.") for name in named)
    )


def _is_off(size: int) -> bool:
    return 1 <= size <= _LARGEST and size not in GRID


def _around(size: int) -> list[int]:
    return [max(one for one in GRID if one < size), min(one for one in GRID if one > size)]


def _effect(name: str) -> str:
    if name == _SEQUENCES:
        return "a full engine's largest batches run without their graph"
    return "vLLM truncates it to the size below"


def _split(dimension: Dimension, flag: str) -> tuple[list[int], list[int]]:
    """The values off the grid; and those on it, or the nearest on it of values that somebody wrote down."""
    match dimension.domain:
        case Bundles(options=options):
            written: list[FlagValue] = [flags[flag] for flags in options.values() if flag in flags]
        case _ if dimension.name != flag:
            return [], []
        case Choice(values=values):
            written = list(values)
        case IntRange(low=low, high=high, step=step):
            inside = range(low, min(high, _LARGEST) + 1, step)
            return [one for one in inside if _is_off(one)], [one for one in GRID if low <= one <= high]
        case FloatRange():
            return [], []
    off = [one for one in written if isinstance(one, int) and _is_off(one)]
    return off, sorted(set(chain.from_iterable(_around(one) for one in off)))


def _remedy(dimension: Dimension) -> str:
    domain = dimension.domain
    if isinstance(domain, IntRange) and not domain.log and domain.low > 4 and domain.high < 256:
        return ": write multiple_of: 8"
    return ": write these as choices"


def _few(sizes: list[int]) -> str:
    if len(sizes) <= _SHOWN:
        return ", ".join(map(str, sizes)) or "none"
    return f"{', '.join(map(str, sizes[: _SHOWN - 1]))}, ..., {sizes[-1]}"
