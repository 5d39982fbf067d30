"""What passes between the loader and its client process: one job in, one line per block out, all of it JSON."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from autotune.spec.measurement import LoadBlock, RequestRecord
from autotune.spec.trace import LaterTurn, Trace, TraceRequest
from autotune.spec.workload import (
    ClosedLoop,
    ConstantArrivals,
    Conversation,
    EmpiricalLength,
    FixedLength,
    GammaArrivals,
    GoodputSearch,
    LogNormalLength,
    Poisson,
    RampArrivals,
    RequestForm,
    RequestShape,
    Rung,
    SharedPrefix,
    TraceArrivals,
    UniformLength,
    Workload,
)

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        Workload,
        RequestShape,
        RequestForm,
        Conversation,
        SharedPrefix,
        FixedLength,
        UniformLength,
        LogNormalLength,
        EmpiricalLength,
        Rung,
        GoodputSearch,
        ClosedLoop,
        Poisson,
        GammaArrivals,
        ConstantArrivals,
        RampArrivals,
        TraceArrivals,
        Trace,
        TraceRequest,
        LaterTurn,
    )
}
_RECORD = tuple(f.name for f in fields(RequestRecord))
_GAPS = _RECORD.index("token_gaps_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """One rung against one engine. `drain_limit_s`: how long answers may take after the last request was sent.

    Of several clients each sends every `shards`th planned request, from number `shard` on; `rung` is then its share.
    """

    url: str
    api_key: str = field(repr=False)
    model: str
    workload: Workload
    rung: Rung
    seed: int
    vocabulary: range
    drain_limit_s: float
    request_timeout_s: float
    shard: int = 0
    shards: int = 1

    def to_line(self) -> bytes:
        given = {f.name: _pack(getattr(self, f.name)) for f in fields(self)}
        given["vocabulary"] = [self.vocabulary.start, self.vocabulary.stop]
        return json.dumps(given).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> LoadJob:
        """Raises ValueError, KeyError or TypeError for anything that `to_line` didn't write."""
        given = {name: _unpack(value) for name, value in json.loads(line).items()}
        given["vocabulary"] = range(*given["vocabulary"])
        return cls(**given)


def block_line(block: LoadBlock) -> bytes:
    rows = []
    for record in block.records:
        row = [getattr(record, name) for name in _RECORD]
        row[_GAPS] = base64.b64encode(record.token_gaps_us).decode()
        rows.append(row)
    head = [block.elapsed_s, block.in_flight, block.sending, block.streamed_tokens]
    return json.dumps([head, rows], separators=(",", ":")).encode() + b"\n"


READY_LINE = b"ready\n"
"""The client's first line. It then waits for the moment to begin, as `time.perf_counter` counts: one line too."""

END_LINE = b"null\n"
"""The client's last line: all was said. Without it, it died."""


def read_block(line: bytes) -> LoadBlock | None:
    """None for the end line."""
    said = json.loads(line)
    if said is None:
        return None
    (elapsed_s, in_flight, sending, streamed_tokens), rows = said
    records = []
    for row in rows:
        row[_GAPS] = base64.b64decode(row[_GAPS])
        records.append(RequestRecord(**dict(zip(_RECORD, row, strict=True))))
    return LoadBlock(
        elapsed_s=elapsed_s,
        records=tuple(records),
        in_flight=in_flight,
        sending=sending,
        streamed_tokens=streamed_tokens,
    )


def _pack(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {f.name: _pack(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [_pack(item) for item in value]
    return None if isinstance(value, range) else value


def _unpack(value: Any) -> Any:
    if isinstance(value, dict):
        kind = _KINDS[value["kind"]]
        return kind(**{name: _unpack(item) for name, item in value.items() if name != "kind"})
    if isinstance(value, list):
        return tuple(_unpack(item) for item in value)
    return value
