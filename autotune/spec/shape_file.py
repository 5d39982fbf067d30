"""The requests of a workload file: shapes with their lengths, or a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from autotune.spec import units
from autotune.spec.schema import validated
from autotune.spec.trace import Trace
from autotune.spec.trace_conversations import SAMPLING_KEYS
from autotune.spec.trace_file import Format, TraceChoice, load_trace
from autotune.spec.trace_lengths import MOONCAKE_BLOCK_TOKENS
from autotune.spec.workload import (
    Conversation,
    EmpiricalLength,
    FixedLength,
    Lengths,
    LogNormalLength,
    RequestForm,
    RequestShape,
    SharedPrefix,
    UniformLength,
)
from autotune.spec.yaml_text import Document, Where

_MOST_TOKENS = 100_000_000

Tokens = Annotated[int, Field(ge=1, le=_MOST_TOKENS)]
_Scale = Annotated[float, Field(gt=0, le=1000)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _LogNormal(Strict):
    median: Annotated[float, Field(ge=1)]
    sigma: Annotated[float, Field(gt=0, le=5)]
    min: Tokens = 1
    max: Tokens


class _Prefix(Strict):
    tokens: Tokens
    groups: Annotated[int, Field(ge=1)] = 1


class _Conversation(Strict):
    turns: Any
    think_time: Any = None


class ShapeText(Strict):
    prompt_tokens: Any
    output_tokens: Any
    shared_prefix: _Prefix | None = None
    conversation: _Conversation | None = None
    n: Annotated[int, Field(ge=1, le=1024)] = 1
    share: Annotated[float, Field(gt=0)] = 1.0
    api: Literal["completions", "chat"] = "completions"
    stream: bool = True
    sampling: dict[str, Any] = Field(default_factory=dict)
    response_format: dict[str, Any] | None = None


class TraceText(Strict):
    file: Annotated[str, Field(min_length=1)]
    format: Format | None = None
    rows: Annotated[int, Field(ge=1)] | None = None
    first_row: Annotated[int, Field(ge=0)] = 0
    windows: Annotated[int, Field(ge=1)] = 1
    prompt_scale: _Scale = 1.0
    output_scale: _Scale = 1.0
    block_tokens: Annotated[int, Field(ge=1, le=MOONCAKE_BLOCK_TOKENS)] = MOONCAKE_BLOCK_TOKENS
    bytes_per_token: Annotated[float, Field(ge=1, le=20)] = 3.0


def read_shape(given: ShapeText, document: Document, where: Where) -> RequestShape:
    return RequestShape(
        prompt=_lengths(given.prompt_tokens, document, (*where, "prompt_tokens")),
        output=_lengths(given.output_tokens, document, (*where, "output_tokens")),
        prefix=SharedPrefix(tokens=given.shared_prefix.tokens, groups=given.shared_prefix.groups)
        if given.shared_prefix
        else None,
        n=given.n,
        share=given.share,
        form=_form(given, document, where),
        conversation=_conversation(given, document, where),
    )


def read_trace(given: TraceText, document: Document, where: Where) -> Trace:
    """A relative path starts at the workload file's folder."""
    trace = load_trace(
        Path(document.file).parent / Path(given.file).expanduser(),
        TraceChoice(**given.model_dump(exclude={"file"})),
    )
    for key, allowed in (
        ("block_tokens", trace.format == "mooncake"),
        ("prompt_scale", trace.format == "azure"),
        ("bytes_per_token", trace.format in ("openai", "sharegpt")),
    ):
        if key in given.model_fields_set and not allowed:
            raise document.error(
                f"a {trace.format} trace has no `{key}`",
                *where,
                key,
                value=getattr(given, key),
                remedy="leave it out"
                + ("; block_tokens says what a block becomes" if trace.format == "mooncake" else ""),
            )
    return trace


def _form(given: ShapeText, document: Document, where: Where) -> RequestForm:
    for key in given.sampling:
        if key not in SAMPLING_KEYS or key == "response_format":
            raise document.error(
                "this can't be set here",
                *where,
                "sampling",
                key,
                remedy="response_format has a key of its own beside it"
                if key == "response_format"
                else f"known: {', '.join(key for key in SAMPLING_KEYS if key != 'response_format')}",
            )
    if given.n > 1 and given.sampling.get("temperature") == 0:
        raise document.error(
            f"with temperature 0 all {given.n} sequences would be the same, and vLLM refuses them",
            *where,
            "sampling",
            "temperature",
            value=0,
            remedy="write 0.7 or so, or n: 1",
        )
    formatted = {} if given.response_format is None else {"response_format": given.response_format}
    if given.response_format is not None and not isinstance(given.response_format.get("type"), str):
        raise document.error(
            "a response_format has a type", *where, "response_format", remedy="write {type: json_object}"
        )
    return RequestForm(
        chat=given.api == "chat", streamed=given.stream, parameters=json.dumps(given.sampling | formatted)
    )


def _conversation(given: ShapeText, document: Document, where: Where) -> Conversation | None:
    if given.conversation is None:
        return None
    if given.n > 1:
        raise document.error(
            "a conversation goes on from one answer",
            *where,
            "n",
            value=given.n,
            remedy="write n: 1, or no conversation",
        )
    think_s = 0.0
    if given.conversation.think_time is not None:
        try:
            think_s = units.duration_s(given.conversation.think_time)
        except ValueError as problem:
            raise document.error(
                str(problem),
                *where,
                "conversation",
                "think_time",
                value=given.conversation.think_time,
                remedy="write 2 s or so",
            ) from None
    turns = _lengths(given.conversation.turns, document, (*where, "conversation", "turns"), what="number of turns")
    return Conversation(turns=turns, think_s=think_s)


def _lengths(given: object, document: Document, where: Where, *, what: str = "length in tokens") -> Lengths:
    if isinstance(given, int) and not isinstance(given, bool):
        if not 1 <= given <= _MOST_TOKENS:
            raise document.error(f"a {what} is at least 1", *where, value=given, remedy="write 1 or more")
        return FixedLength(tokens=given)
    match given:
        case {"uniform": [int(low), int(high)], **rest} if not rest:
            if not 1 <= low <= high <= _MOST_TOKENS:
                raise document.error(
                    "uniform is [least, greatest], from 1 up",
                    *where,
                    "uniform",
                    value=[low, high],
                    remedy=f"write [{min(low, high)}, {max(low, high)}]" if min(low, high) >= 1 else "begin at 1",
                )
            return UniformLength(low=low, high=high)
        case {"lognormal": dict(), **rest} if not rest:
            spec = validated(_LogNormal, document, (*where, "lognormal"))
            if not spec.min <= spec.median <= spec.max:
                raise document.error(
                    "a log-normal length needs min <= median <= max",
                    *where,
                    "lognormal",
                    value=f"min {spec.min}, median {spec.median:g}, max {spec.max}",
                    remedy="widen min and max, they clip the distribution",
                )
            return LogNormalLength(median=spec.median, sigma=spec.sigma, low=spec.min, high=spec.max)
        case {"empirical": list() | dict() as seen, **rest} if not rest and seen:
            return _empirical(seen, document, (*where, "empirical"))
        case _:
            raise document.error(
                f"this is no {what}",
                *where,
                value=given,
                remedy="write a number, {uniform: [64, 512]}, {lognormal: {median: 256, sigma: 0.8, max: 2048}}"
                " or {empirical: [12, 80, 80, 512]}",
            )


def _empirical(seen: list[Any] | dict[str, Any], document: Document, where: Where) -> EmpiricalLength:
    """Lengths as a list, or each with its weight."""
    pairs = seen.items() if isinstance(seen, dict) else ((value, 1) for value in seen)
    weights: dict[int, float] = {}
    for value, weight in pairs:
        length = int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else 0
        if isinstance(value, bool) or not 1 <= length <= _MOST_TOKENS:
            raise document.error(
                "a length is a whole number, 1 or more", *where, value=value, remedy="correct or remove it"
            )
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 1e12:
            raise document.error(
                "a weight is a number above 0", *where, str(value), value=weight, remedy=f"write {value}: 1"
            )
        weights[length] = weights.get(length, 0.0) + weight
    return EmpiricalLength(values=tuple(weights), weights=tuple(weights.values()))
