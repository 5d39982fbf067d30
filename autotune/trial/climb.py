"""The story of one trial: start the engine, warm it up, apply the load rung by rung, measure, stop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from autotune.load.findable import findable_share
from autotune.load.statistics import measure
from autotune.load.validity import remarks, untrustworthy, unusable
from autotune.spec.config import EngineConfig
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import Measurement, RequestRecord, StartFacts
from autotune.spec.objective import Slo
from autotune.spec.verdict import Books, Broken, EngineFailure, Infeasible, Invalid, Measured, Verdict
from autotune.spec.workload import ClosedLoop, GoodputSearch, Rung, Workload
from autotune.trial import goodput
from autotune.trial.rung_so_far import RungSoFar, catch_up, wait_until_idle
from autotune.trial.seams import Launcher, Loader
from autotune.trial.stress import stressed

log = logging.getLogger(__name__)

_RETRIES = 2
"""Rungs of one trial that may be run again, all together."""

_NEW_PROMPTS = 2**64
"""Added to the seed of a rung that is run again: more than any search adds between its trials."""

Stage = Literal["starting", "warm-up", "load", "stopping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Where a trial is, and what its rung showed so far; about one a second, so that a trial can be stopped early."""

    stage: Stage
    detail: str = ""
    measurement: Measurement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RungRequests:
    rung: str
    records: tuple[RequestRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a trial leaves behind. `verdict` None: it was cut short by its caller, who knows why. `facts` are of what
    the engine was started with (`launched`)."""

    verdict: Verdict | None
    books: Books
    measurements: tuple[Measurement, ...] = ()
    requests: tuple[RungRequests, ...] = ()
    facts: StartFacts = field(default_factory=StartFacts)
    argv: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    launched: EngineConfig | None = None
    """What the engine's process was started with, where that may be more than the candidate asks for."""
    reused: bool = False
    """Whether it was a running engine that only changed its live settings."""


def climb(
    config: EngineConfig,
    workload: Workload,
    *,
    name: str,
    slos: Sequence[Slo],
    seed: int,
    devices: Sequence[str],
    launcher: Launcher,
    loader: Loader,
    clock: Callable[[], float],
    cancelled: Callable[[], bool],
    stress: bool = False,
) -> Generator[Snapshot, None, Outcome]:
    """Yields a snapshot about once a second and returns the outcome.

    `cancelled` is asked between snapshots; once it says True, the load is cancelled, the engine stopped, and the
    outcome carries what was seen up to then with verdict None. `name` names the engine's log folder; `clock` counts
    seconds. `stress`: whether the engine is to show, after its last rung, that it survives peak load (`trial.stress`).
    """
    climber = _Climber(config=config, workload=workload, slos=tuple(slos), seed=seed, loader=loader)
    began = clock()
    yield Snapshot(stage="starting")
    with launcher(config, devices, name=name, cancelled=cancelled) as started:
        match started:
            case EngineFailure():
                climber.verdict = None if cancelled() else failed(started)
                climber.books = replace(climber.books, dead_s=max(clock() - began, started.after_s))
            case Endpoint():
                climber.books = started.ahead + Books(start_s=started.start_s)
                yield from climber.apply_load(started, cancelled)
                if stress and isinstance(climber.verdict, Measured):
                    yield from climber.apply_stress(started, cancelled, measured=climber.verdict)
                yield Snapshot(stage="stopping")
                stopping = clock()
    if isinstance(started, Endpoint):
        climber.books += Books(stop_s=clock() - stopping)
    return Outcome(
        verdict=climber.verdict,
        books=climber.books,
        measurements=tuple(climber.measurements),
        requests=tuple(climber.requests),
        facts=started.facts if isinstance(started, Endpoint) else StartFacts(),
        argv=started.argv if isinstance(started, Endpoint) else tuple(config.argv()),
        devices=tuple(devices),
        launched=started.launched if isinstance(started, Endpoint) else None,
        reused=isinstance(started, Endpoint) and started.reused,
    )


def failed(failure: EngineFailure) -> Verdict:
    """An engine that failed by its flags is infeasible; one that failed by its surroundings teaches nothing."""
    evidence = f"{failure.stage}: {failure.evidence}" if failure.evidence else failure.stage
    if failure.blames_configuration:
        return Infeasible(cause=failure.cause, evidence=evidence, shortfall=failure.shortfall, bounds=failure.bounds)
    return Broken(error=evidence, cause=failure.cause)


class _Climber:
    """The part of a trial that has an engine: it collects as it goes, so that nothing is lost when it is cut short."""

    def __init__(
        self, *, config: EngineConfig, workload: Workload, slos: tuple[Slo, ...], seed: int, loader: Loader
    ) -> None:
        self.config, self.workload, self.slos, self.seed, self.loader = config, workload, slos, seed, loader
        self.verdict: Verdict | None = None
        self.books = Books()
        self.measurements: list[Measurement] = []
        self.requests: list[RungRequests] = []
        self.reasons: tuple[str, ...] = ()

    def apply_load(self, endpoint: Endpoint, cancelled: Callable[[], bool]) -> Generator[Snapshot, None, None]:
        warm_up = Rung(
            name="warm-up",
            arrivals=ClosedLoop(concurrency=min(8, max(1, self.workload.warm_up_requests))),
            requests=self.workload.warm_up_requests,
        )
        if warm_up.requests and not (yield from self._rung(endpoint, warm_up, cancelled, stage="warm-up")):
            return
        retries_left = _RETRIES
        for rung in self.workload.rungs:
            attempt = 0
            while True:
                if not (yield from self._rung(endpoint, rung, cancelled, stage="load", attempt=attempt)):
                    return
                if not self.reasons:
                    for remark in remarks(self.requests[-1].records):
                        log.warning("rung %s: %s", rung.name, remark)
                    break
                log.warning("rung %s can't be used: %s", rung.name, "; ".join(self.reasons))
                if not retries_left:
                    self.verdict = Invalid(reasons=tuple(f"{rung.name}: {reason}" for reason in self.reasons))
                    return
                retries_left -= 1
                attempt += 1
                self.measurements.pop()
                self.requests.pop()
        name = self.workload.reference_rungs[-1]
        reference = next(m for m in self.measurements if m.rung == name)
        if (search := self.workload.goodput_search) is not None:
            tried = yield from self._search_rate(endpoint, search, cancelled, reference=reference)
            if tried is None:
                return
            reference = goodput.with_goodput(reference, tried)
        self.verdict = Measured(measurement=reference)

    def _search_rate(
        self, endpoint: Endpoint, search: GoodputSearch, cancelled: Callable[[], bool], *, reference: Measurement
    ) -> Generator[Snapshot, None, list[goodput.Tried] | None]:
        """What was tried; None when the trial ends here, as of `_rung`.

        A rung that held but can't be used is run again, within the limit; one that didn't hold either isn't: whatever
        was the limit there, a lower rate can tell.
        """
        tried: list[goodput.Tried] = []
        retries_left, number = _RETRIES, 0
        guess_rps = reference.requests_per_s or 1.0
        while (rate := goodput.next_rate(search, tried, guess_rps=guess_rps)) is not None:
            number += 1
            least_s = goodput.STAYS * goodput.stay_s(reference, tried, rate)
            rung, seen = search.rung(number, rate, least_s=least_s), RungSoFar()
            if not (yield from self._rung(endpoint, rung, cancelled, stage="load", seen=seen, rate_rps=rate)):
                return None
            behind = goodput.falls_behind(seen.records, until_s=seen.sending_until_s or seen.elapsed_s)
            held = not seen.cut_short and goodput.holds(self.slos, self.measurements[-1], behind=behind)
            log.info("%s: %.4g requests/s %s", rung.name, rate, "held" if held else "didn't hold")
            if self.reasons:
                log.warning("rung %s can't be used: %s", rung.name, "; ".join(self.reasons))
            if self.reasons and held and retries_left:
                retries_left -= 1
                continue
            usable = not self.reasons
            tried.append(
                goodput.Tried(rate_rps=rate, held=held and usable, measurement=self.measurements[-1], usable=usable)
            )
        return tried

    def apply_stress(
        self, endpoint: Endpoint, cancelled: Callable[[], bool], *, measured: Measured
    ) -> Generator[Snapshot, None, None]:
        """After all that is compared, so that it disturbs none of it, and not judged: lost requests are its finding.

        An engine that dies in it keeps what it had shown before.
        """
        running = [m.running_max for m in self.measurements if m.running_max is not None]
        self.workload = stressed(self.workload, self.config, seen_running=max(running, default=None))
        if (yield from self._rung(endpoint, self.workload.reference, cancelled, stage="load")):
            return
        if self.verdict is measured:
            self.verdict = None  # cut short
        elif isinstance(self.verdict, Infeasible):
            self.verdict = replace(self.verdict, measurement=measured.measurement)

    def _rung(
        self,
        endpoint: Endpoint,
        rung: Rung,
        cancelled: Callable[[], bool],
        *,
        stage: Literal["warm-up", "load"],
        attempt: int = 0,
        seen: RungSoFar | None = None,
        rate_rps: float | None = None,
    ) -> Generator[Snapshot, None, bool]:
        """Runs one rung; False when the trial ends here (cut short, or the engine died: then the verdict is set).

        After it `reasons` holds what speaks against the rung, `seen` what it showed. Each attempt sends prompts of its
        own, so that what the one before left in a prefix cache is no use to it. With a `rate_rps` (a goodput search's)
        it ends as soon as the limits are broken for good.
        """
        seed = self.seed + attempt * _NEW_PROMPTS
        seen = RungSoFar() if seen is None else seen
        finished = False
        if sample := endpoint.scrape():  # counters before the first request, so that all of the rung is counted
            seen.samples.append(replace(sample, at_s=0.0))
        blocks = self.loader(endpoint, self.workload, rung, seed=seed)
        try:
            for block in blocks:
                seen.add(block, endpoint.scrape())
                if failure := endpoint.failure():
                    self.verdict = failed(failure)
                    return False
                measured = self._measure(rung, seen, complete=False) if stage == "load" else None
                detail = f"{rung.name}, again" if attempt else rung.name
                if rate_rps is not None:
                    detail = f"{rung.name}: {rate_rps:.3g} /s"
                    if block.sending and goodput.hopeless(rung, seen.records, self.slos, rate_rps=rate_rps):
                        seen.cut_short = True
                        break
                yield Snapshot(stage=stage, detail=detail, measurement=measured)
                if cancelled():
                    return False
            finished = True
        finally:
            close = getattr(blocks, "close", None)
            if close is not None:
                close()
            self._book(stage, seen.elapsed_s)
            if stage == "load":
                if finished and not seen.cut_short:
                    catch_up(endpoint, seen)
                self.requests.append(RungRequests(rung=rung.name, records=tuple(seen.records)))
                measured = self._measure(rung, seen, complete=finished and not seen.cut_short)
                self.measurements.append(measured)
        if failure := endpoint.failure():
            self.verdict = failed(failure)
            return False
        if stage == "warm-up" and seen.records and all(record.error for record in seen.records):
            self.verdict = Invalid(reasons=(f"warm-up: every request failed: {seen.records[0].error}",))
            return False
        if seen.cut_short:
            wait_until_idle(endpoint)
            self.reasons = unusable(replace(rung, requests=len(seen.records)), seen.records, failed_share_limit=1.0)
        elif stage == "load":
            self.reasons = untrustworthy(
                rung,
                seen.records,
                self.measurements[-1],
                samples=seen.samples,
                client_busy=seen.client_busy,
                sending_until_s=seen.sending_until_s,
                findable_share=lambda: findable_share(self.workload, rung, seed=seed, requests=len(seen.records)),
            )
        return True

    def _measure(self, rung: Rung, seen: RungSoFar, *, complete: bool) -> Measurement:
        measured = measure(
            rung,
            seen.records,
            elapsed_s=seen.elapsed_s,
            sending_until_s=seen.sending_until_s,
            gpus=self.config.gpus,
            slos=self.slos,
            samples=seen.samples,
            complete=complete,
            streamed_tokens=None if complete else seen.streamed_tokens,
        )
        adaptive = rung not in self.workload.rungs
        return goodput.without_goodput(measured) if self.workload.goodput_search and not adaptive else measured

    def _book(self, stage: Literal["warm-up", "load"], seconds: float) -> None:
        if stage == "load":
            self.books = replace(self.books, load_s=self.books.load_s + seconds)
        else:
            self.books = replace(self.books, warm_up_s=self.books.warm_up_s + seconds)
