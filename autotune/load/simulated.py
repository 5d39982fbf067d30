"""Load on an engine that isn't there: a step-by-step model of continuous batching, in simulated seconds.

Each step decodes one token for every running sequence and spends what is left of `max-num-batched-tokens` on prompts
that wait to be read; a step's time grows with both. That is enough for the trade-offs a search meets: more sequences
bring throughput and cost time per token, larger prefill budgets shorten the queue and stall decoding, tensor parallel
speeds up by less than its GPUs. Nothing is preempted: a request is admitted only when its whole length fits the KV
cache. When more run than the engine's memory bears, it dies, and with it all that is in flight.
"""

from __future__ import annotations

import hashlib
import heapq
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from autotune.load.prefixes import PrefixCache
from autotune.load.traffic import PlannedRequest, plan
from autotune.spec.config import FlagValue
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import LoadBlock, RequestRecord
from autotune.spec.workload import ClosedLoop, Rung, Workload

_BLOCK_S = 1.0
_CACHE_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoader:
    """`noise` is the relative spread of a whole rung and, again, of each step; 0 makes a run exact.

    `time_scale`: real seconds per simulated second; 0 never sleeps. The same endpoint flags, workload, rung and seed
    always give the same blocks.
    """

    time_scale: float = 0.0
    noise: float = 0.01
    step_ms: float = 6.0
    step_overhead_ms: float = 0.6
    eager_overhead_ms: float = 5.0
    decode_us_per_sequence: float = 60.0
    prefill_us_per_token: float = 14.0
    tensor_parallel_exponent: float = 0.75

    def __call__(self, endpoint: Endpoint, workload: Workload, rung: Rung, *, seed: int) -> Iterator[LoadBlock]:
        previous_s = 0.0
        for block in _Simulation(self, endpoint, workload, rung, seed=seed).blocks():
            time.sleep((block.elapsed_s - previous_s) * self.time_scale)
            previous_s = block.elapsed_s
            yield block


@dataclass(slots=True, kw_only=True)
class _Request:
    planned: PlannedRequest
    scheduled_s: float
    prefill_left: int
    cached_tokens: int
    first_step: int | None = None

    @property
    def kv_tokens(self) -> int:
        return self.planned.prompt_tokens + self.planned.n * self.planned.output_tokens


class _Simulation:
    """The state of one rung. A running request gains a token at every one of `step_ends_s`."""

    def __init__(
        self, model: SimulatedLoader, endpoint: Endpoint, workload: Workload, rung: Rung, *, seed: int
    ) -> None:
        flags = endpoint.config.flags
        key = f"{seed}/{rung.name}/{endpoint.config.key}".encode()
        self.random = np.random.default_rng(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little"))
        self.model, self.rung = model, rung
        self.bears = endpoint.bears
        self.max_seqs = max(1, int(_number(flags, "max-num-seqs", 128)))
        self.max_batched = max(1, int(_number(flags, "max-num-batched-tokens", 2048)))
        self.kv_tokens = endpoint.facts.kv_cache_tokens
        self.prefix_caching = flags.get("enable-prefix-caching") is not False
        tensor = _number(flags, "tensor-parallel-size", 1)
        self.speed = float(tensor**model.tensor_parallel_exponent)
        if flags.get("quantization") not in (None, "none"):
            self.speed *= 1.3
        eager = flags.get("enforce-eager") is True
        self.overhead_s = (model.step_overhead_ms + (model.eager_overhead_ms if eager else 0.0)) / 1e3
        self.slowness = float(np.exp(self.random.normal(0.0, model.noise))) if model.noise else 1.0

        self.planned = plan(workload, rung, seed=seed)
        self.upcoming = next(self.planned)
        self.now_s = 0.0
        self.sent = 0
        self.waiting: deque[_Request] = deque()
        self.prefilling: deque[_Request] = deque()
        self.finishing: defaultdict[int, list[_Request]] = defaultdict(list)
        self.decoding = self.sequences = self.kv_used = self.streamed = 0
        self.step_ends_s: list[float] = []
        self.prefixes = PrefixCache(block_tokens=_CACHE_BLOCK_TOKENS)
        self.thinking: list[tuple[float, int, PlannedRequest]] = []
        self.ended: list[RequestRecord] = []

    @property
    def in_flight(self) -> int:
        return len(self.waiting) + len(self.prefilling) + self.decoding

    @property
    def sending(self) -> bool:
        due_s = self.now_s if self.upcoming.scheduled_s is None else self.upcoming.scheduled_s
        return self.sent < self.rung.requests or due_s < self.rung.duration_s

    def blocks(self) -> Iterator[LoadBlock]:
        """Whenever a second has passed; twice at the moment when sending ends, once on either side of it."""
        cut_s = _BLOCK_S
        if isinstance(self.rung.arrivals, ClosedLoop):
            for _ in range(self.rung.arrivals.concurrency):
                self._send(self.now_s)
        was_sending = True
        while True:
            sending = self.sending
            if was_sending and not sending:
                yield self._block(sending=True)
            if self.now_s >= cut_s or (was_sending and not sending):
                yield self._block(sending=sending)
                cut_s = self.now_s + _BLOCK_S
            was_sending = sending
            arrival_s = self._next_due_s()
            while sending and arrival_s is not None and arrival_s <= self.now_s:
                self._send(arrival_s)
                sending, arrival_s = self.sending, self._next_due_s()
            if self.in_flight:
                self._admit()
                if self.bears is not None and not self.bears(self.sequences):
                    self._lose_all()
                    break
                self._step()
            elif sending and arrival_s is not None:
                self.now_s = min(arrival_s, cut_s)
            elif not was_sending:
                break
        yield self._block(sending=False)

    def _next_due_s(self) -> float | None:
        """Of a new request or of a conversation's next turn, whichever is first."""
        new_s = self.upcoming.scheduled_s
        if not self.thinking:
            return new_s
        return self.thinking[0][0] if new_s is None else min(new_s, self.thinking[0][0])

    def _send(self, scheduled_s: float) -> None:
        if not self.sending:
            return
        if self.thinking and self.thinking[0][0] <= scheduled_s:
            _, _, planned = heapq.heappop(self.thinking)
        else:
            planned, self.upcoming = self.upcoming, next(self.planned)
        self.sent += 1
        self.waiting.append(
            _Request(planned=planned, scheduled_s=scheduled_s, prefill_left=planned.prompt_tokens, cached_tokens=0)
        )

    def _admit(self) -> None:
        while self.waiting:
            request = self.waiting[0]
            busy = self.sequences > 0
            fits = self.kv_tokens is None or self.kv_used + request.kv_tokens <= self.kv_tokens
            if busy and not (fits and self.sequences + request.planned.n <= self.max_seqs):
                return
            self.waiting.popleft()
            self.sequences += request.planned.n
            self.kv_used += request.kv_tokens
            if self.prefix_caching:
                request.cached_tokens = self.prefixes.admit(request.planned.pieces())
                request.prefill_left -= request.cached_tokens
            request.prefill_left = max(1, request.prefill_left)
            self.prefilling.append(request)

    def _step(self) -> None:
        decoding_sequences = self.sequences - sum(request.planned.n for request in self.prefilling)
        budget = max(1, self.max_batched - decoding_sequences)
        read: list[_Request] = []
        prefilled = 0
        while self.prefilling and prefilled < budget:
            tokens = min(self.prefilling[0].prefill_left, budget - prefilled)
            prefilled += tokens
            self.prefilling[0].prefill_left -= tokens
            if self.prefilling[0].prefill_left == 0:
                read.append(self.prefilling.popleft())
        work_s = (
            self.model.step_ms * 1e-3
            + self.model.decode_us_per_sequence * 1e-6 * decoding_sequences
            + self.model.prefill_us_per_token * 1e-6 * prefilled
        )
        noise = float(np.exp(self.random.normal(0.0, self.model.noise))) if self.model.noise else 1.0
        self.now_s += (work_s / self.speed + self.overhead_s) * self.slowness * noise
        step = len(self.step_ends_s)
        self.step_ends_s.append(self.now_s)
        self.streamed += decoding_sequences
        for request in read:
            request.first_step = step
            self.decoding += 1
            self.streamed += request.planned.n
            self.finishing[step + request.planned.output_tokens - 1].append(request)
        for request in self.finishing.pop(step, ()):
            self._finish(request, last_step=step)

    def _finish(self, request: _Request, *, last_step: int) -> None:
        assert request.first_step is not None
        planned = request.planned
        self.decoding -= 1
        self.sequences -= planned.n
        self.kv_used -= request.kv_tokens
        times_s = np.repeat(self.step_ends_s[request.first_step : last_step + 1], planned.n)
        self.ended.append(
            RequestRecord(
                scheduled_s=request.scheduled_s,
                sent_s=request.scheduled_s,
                first_token_s=float(times_s[0]),
                done_s=self.now_s,
                prompt_tokens=planned.prompt_tokens,
                output_tokens=planned.n * planned.output_tokens,
                cached_tokens=request.cached_tokens,
                token_gaps_us=np.rint(np.diff(times_s) * 1e6).astype("<u4").tobytes(),
                n=planned.n,
                asked_prompt_tokens=planned.prompt_tokens,
                asked_output_tokens=planned.n * planned.output_tokens,
            )
        )
        following = planned.followed_by(None)
        if following is not None:
            heapq.heappush(self.thinking, (self.now_s + planned.think_s, self.sent, following))
        elif isinstance(self.rung.arrivals, ClosedLoop):
            self._send(self.now_s)

    def _lose_all(self) -> None:
        """What is in flight when the engine dies."""
        decoding = [request for requests in self.finishing.values() for request in requests]
        for request in (*self.waiting, *self.prefilling, *decoding):
            self.ended.append(
                RequestRecord(
                    scheduled_s=request.scheduled_s,
                    sent_s=request.scheduled_s,
                    first_token_s=None,
                    done_s=None,
                    prompt_tokens=None,
                    output_tokens=None,
                    error="the engine died",
                    n=request.planned.n,
                )
            )
        self.waiting.clear()
        self.prefilling.clear()
        self.finishing.clear()
        self.decoding = 0

    def _block(self, *, sending: bool) -> LoadBlock:
        records, self.ended = tuple(self.ended), []
        return LoadBlock(
            elapsed_s=self.now_s,
            records=records,
            in_flight=self.in_flight,
            sending=sending,
            streamed_tokens=self.streamed,
        )


def _number(flags: Mapping[str, FlagValue], name: str, default: float) -> float:
    value = flags.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default
