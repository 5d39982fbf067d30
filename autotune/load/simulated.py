"""Load on an engine that isn't there: a model of vLLM's scheduler, event by event, in simulated seconds.

As vLLM V1 does (vllm/v1/core/sched/scheduler.py): each step decodes one token for every running sequence and spends
what is left of `max-num-batched-tokens` on prompts, in the order of their admission; a request is admitted when there
is room for its prompt, not for its answer; when the KV cache runs out, the one admitted last is preempted and computed
again later. How long a step takes is `step_time`'s affair. Steps that only decode are taken many at a time, up to the
next event: an arrival, the end of an answer, a full cache.

When more sequences run than the engine's memory bears, it dies, and with it all that is in flight.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from autotune.load.prefixes import PrefixCache
from autotune.load.step_time import StepTime
from autotune.load.traffic import PlannedRequest, plan
from autotune.spec.config import number_of
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import LoadBlock, RequestRecord
from autotune.spec.workload import ClosedLoop, Rung, Workload

_BLOCK_S = 1.0
_CACHE_BLOCK_TOKENS = 16
_STEP = StepTime()
_MOST_STEPS = 4096
"""Taken at once, however far the next event is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoader:
    """`noise` is the relative spread of a whole rung and, again, of each step; 0 makes a run exact.

    `time_scale`: real seconds per simulated second; 0 never sleeps. The same endpoint flags, workload, rung and seed
    always give the same blocks.
    """

    time_scale: float = 0.0
    noise: float = 0.01
    step: StepTime = _STEP

    def __call__(self, endpoint: Endpoint, workload: Workload, rung: Rung, *, seed: int) -> Iterator[LoadBlock]:
        previous_s = 0.0
        for block in _Simulation(self, endpoint, workload, rung, seed=seed).blocks():
            if self.time_scale:
                time.sleep((block.elapsed_s - previous_s) * self.time_scale)
            previous_s = block.elapsed_s
            yield block


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    """`answered`: tokens of each of its sequences; `since`: the step at which the current stint of decoding began, and
    `stints` the (first, last) steps of those before a preemption."""

    planned: PlannedRequest
    scheduled_s: float
    prefill_left: int
    cached_tokens: int = 0
    answered: int = 0
    since: int | None = None
    ends_at: int = 0
    stints: list[tuple[int, int]] = field(default_factory=list)
    held_tokens: int = 0
    """Of the KV cache, but for the answer's of the current stint."""


class _Simulation:
    """The state of one rung. A running request gains a token at every one of `step_ends_s`."""

    def __init__(
        self, model: SimulatedLoader, endpoint: Endpoint, workload: Workload, rung: Rung, *, seed: int
    ) -> None:
        flags = endpoint.config.flags
        key = f"{seed}/{rung.name}/{endpoint.config.key}".encode()
        self.random = np.random.default_rng(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little"))
        self.noise, self.rung, self.bears = model.noise, rung, endpoint.bears
        self.max_seqs = max(1, int(number_of(flags, "max-num-seqs", 128)))
        self.max_batched = max(1, int(number_of(flags, "max-num-batched-tokens", 2048)))
        self.chunked = flags.get("enable-chunked-prefill") is not False
        self.chunk_tokens = int(number_of(flags, "long-prefill-token-threshold", 0)) or self.max_batched
        self.block_tokens = int(number_of(flags, "block-size", _CACHE_BLOCK_TOKENS))
        self.kv_tokens = endpoint.facts.kv_cache_tokens
        self.prefix_caching = flags.get("enable-prefix-caching") is not False
        self.step = model.step.under(flags, max_num_seqs=self.max_seqs)
        self.slowness = float(np.exp(self.random.normal(0.0, model.noise))) if model.noise else 1.0

        self.planned = plan(workload, rung, seed=seed)
        self.upcoming = next(self.planned)
        self.now_s = self.cut_s = 0.0
        self.sent = 0
        self.waiting: deque[_Request] = deque()
        self.prefilling: deque[_Request] = deque()
        self.admitted: list[_Request] = []
        """All that run, in the order of their admission."""
        self.finishing: defaultdict[int, list[_Request]] = defaultdict(list)
        self.decoding = self.sequences = self.answering = self.kv_used = self.streamed = self.preemptions = 0
        self.step_ends_s: list[float] = []
        self.prefixes = PrefixCache(block_tokens=self.block_tokens)
        self.thinking: list[tuple[float, int, PlannedRequest]] = []
        self.order = itertools.count()
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
        self.cut_s = _BLOCK_S
        if isinstance(self.rung.arrivals, ClosedLoop):
            for _ in range(self.rung.arrivals.concurrency):
                self._send(self.now_s)
        was_sending = True
        while True:
            sending = self.sending
            if was_sending and not sending:
                yield self._block(sending=True)
            if self.now_s >= self.cut_s or (was_sending and not sending):
                yield self._block(sending=sending)
                self.cut_s = self.now_s + _BLOCK_S
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
                self._advance(until_s=self.cut_s if arrival_s is None or not sending else min(arrival_s, self.cut_s))
            elif sending and arrival_s is not None:
                self.now_s = min(arrival_s, self.cut_s)
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
        self.waiting.append(_Request(planned=planned, scheduled_s=scheduled_s, prefill_left=planned.prompt_tokens))

    def _admit(self) -> None:
        while self.waiting:
            request = self.waiting[0]
            planned = request.planned
            if self.sequences and self.sequences + planned.n > self.max_seqs:
                return
            tokens = planned.prompt_tokens + planned.n * request.answered
            free = None if self.kv_tokens is None else self.kv_tokens - self.kv_used
            if self.sequences and free is not None and self._whole_blocks(request.prefill_left, planned.n) > free:
                return
            self.waiting.popleft()
            self.sequences += planned.n
            if self.prefix_caching and not request.answered:
                request.cached_tokens = self.prefixes.admit(planned.pieces())
                request.prefill_left = max(1, request.prefill_left - request.cached_tokens)
            # What others hold too, in the prefix cache, is held once.
            request.held_tokens = self._whole_blocks(tokens - request.cached_tokens, planned.n)
            self.kv_used += request.held_tokens
            self.prefilling.append(request)
            self.admitted.append(request)

    def _whole_blocks(self, tokens: int, sequences: int) -> int:
        """A sequence's last block is half empty, on average."""
        return tokens + sequences * self.block_tokens // 2

    def _advance(self, *, until_s: float) -> None:
        """One step with prompts in it, or as many as only decode until something happens or `until_s` is reached."""
        answering = self.answering
        read, prefilled = self._read_prompts(max(0, self.max_batched - answering))
        steps = 1
        if not prefilled:
            steps = min(min(self.finishing) - len(self.step_ends_s) + 1, _MOST_STEPS)
        if answering and self.kv_tokens is not None:
            fit = (self.kv_tokens - self.kv_used) // answering
            while fit < 1 and self._preempt_last():
                answering = self.answering
                fit = (self.kv_tokens - self.kv_used) // max(1, answering)
            steps = max(1, min(steps, fit))
        cached = self.kv_used + answering * np.arange(steps, dtype=np.float64)
        took_s = self.step.seconds(prefill_tokens=prefilled, sequences=answering, kv_tokens=cached) * self.slowness
        if self.noise:
            took_s = took_s * np.exp(self.random.normal(0.0, self.noise, steps))
        ends_s = self.now_s + np.cumsum(took_s)
        # The step during which it happens is the last.
        steps = min(steps, int(np.searchsorted(ends_s, until_s)) + 1)
        first = len(self.step_ends_s)
        self.step_ends_s += ends_s[:steps].tolist()
        self.now_s = self.step_ends_s[-1]
        self.kv_used += steps * answering
        self.streamed += steps * answering
        for request in read:
            request.since = first
            self.decoding += 1
            self.answering += request.planned.n
            self.streamed += request.planned.n
            request.ends_at = first + request.planned.output_tokens - request.answered - 1
            self.finishing[request.ends_at].append(request)
        last = first + steps - 1
        for request in self.finishing.pop(last, ()):
            self._finish(request, last_step=last)

    def _read_prompts(self, budget: int) -> tuple[list[_Request], int]:
        """Of this step: requests whose prompt it ends, and the tokens of all it reads."""
        read: list[_Request] = []
        prefilled = 0
        for request in list(self.prefilling):
            room = budget - prefilled
            if self.chunked:
                tokens = min(request.prefill_left, room, self.chunk_tokens)
            else:  # whole or not at all; one alone is always read, or it would wait for ever
                alone = not prefilled and not self.answering
                tokens = request.prefill_left if request.prefill_left <= room or alone else 0
            if tokens <= 0:
                break
            prefilled += tokens
            request.prefill_left -= tokens
            if request.prefill_left == 0:
                read.append(request)
                self.prefilling.remove(request)
        return read, prefilled

    def _preempt_last(self) -> bool:
        """Gives back what the last admitted of those that answer holds; False where it is the only one."""
        answering = [request for request in self.admitted if request.since is not None]
        if len(answering) < 2:
            return False
        request, step = answering[-1], len(self.step_ends_s)
        assert request.since is not None
        done = step - request.since
        if done:
            request.stints.append((request.since, step - 1))
        self.finishing[request.ends_at].remove(request)
        if not self.finishing[request.ends_at]:
            del self.finishing[request.ends_at]
        self._release(request, done)
        request.answered += done
        request.since = None
        request.prefill_left = request.planned.prompt_tokens + request.planned.n * request.answered
        request.cached_tokens = 0
        self.waiting.appendleft(request)
        self.preemptions += 1
        return True

    def _release(self, request: _Request, answered: int) -> None:
        self.decoding -= 1
        self.answering -= request.planned.n
        self.sequences -= request.planned.n
        self.admitted.remove(request)
        # The token of the step that read the prompt came without a step of its own.
        self.kv_used -= request.held_tokens + request.planned.n * max(0, answered - 1)

    def _finish(self, request: _Request, *, last_step: int) -> None:
        assert request.since is not None
        planned = request.planned
        self._release(request, last_step - request.since + 1)
        request.stints.append((request.since, last_step))
        ends_s = [end_s for begin, end in request.stints for end_s in self.step_ends_s[begin : end + 1]]
        times_s = np.repeat(ends_s, planned.n)
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
            heapq.heappush(self.thinking, (self.now_s + planned.think_s, next(self.order), following))
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
        self.admitted.clear()
        self.decoding = self.answering = 0

    def _block(self, *, sending: bool) -> LoadBlock:
        records, self.ended = tuple(self.ended), []
        return LoadBlock(
            elapsed_s=self.now_s,
            records=records,
            in_flight=self.in_flight,
            sending=sending,
            streamed_tokens=self.streamed,
        )
