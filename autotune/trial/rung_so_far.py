"""What one rung of a trial has shown so far."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from autotune.load.server_side import settled
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import EngineSample, LoadBlock, RequestRecord

_SETTLING_S = 1.0
_ABORTING_S = 10.0


@dataclass(slots=True)
class RungSoFar:
    """Collected as it goes, so that nothing is lost when a trial is cut short. `cut_short`: the rung was ended before
    it had sent all it would, because its answer was known."""

    records: list[RequestRecord] = field(default_factory=list)
    samples: list[EngineSample] = field(default_factory=list)
    elapsed_s: float = 0.0
    sending_until_s: float | None = None
    streamed_tokens: int | None = None
    client_busy: list[float] = field(default_factory=list)
    cut_short: bool = False

    def add(self, block: LoadBlock, sample: EngineSample | None) -> None:
        self.records.extend(block.records)
        self.elapsed_s, self.streamed_tokens = block.elapsed_s, block.streamed_tokens
        if not block.sending and self.sending_until_s is None:
            self.sending_until_s = block.elapsed_s
        if block.sending and block.client_busy is not None:
            self.client_busy.append(block.client_busy)
        if sample is not None:
            self.samples.append(replace(sample, at_s=block.elapsed_s))


def catch_up(endpoint: Endpoint, seen: RungSoFar) -> None:
    """An engine counts a request a moment after it has answered it: its last reading waits for that, up to a second."""
    give_up_s = time.monotonic() + _SETTLING_S
    while seen.samples and not settled(seen.records, seen.samples) and time.monotonic() < give_up_s:
        time.sleep(0.1)
        if sample := endpoint.scrape():
            seen.samples.append(replace(sample, at_s=seen.elapsed_s))


def wait_until_idle(endpoint: Endpoint) -> None:
    """After a rung was cut short: until the engine has dropped the requests whose connections are gone."""
    give_up_s = time.monotonic() + _ABORTING_S
    while (sample := endpoint.scrape()) is not None and time.monotonic() < give_up_s:
        if not sample.running and not sample.waiting:
            return
        time.sleep(0.1)
