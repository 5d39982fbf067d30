"""A whole search: Ray Tune runs the trials, the study suggests them, the history keeps them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # Tune's own tables; vtune has its view
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # no CSV/JSON/TensorBoard copies of results
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # Ctrl-C is handled here
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "3600")  # the history is the record
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray import tune
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from autotune.engine.environment import read_environment
from autotune.engine.gpus import all_gpus
from autotune.errors import NoValidTrial
from autotune.history.reading import read_trials
from autotune.history.rundir import RunDir
from autotune.history.tables import append_environment
from autotune.run.actor import TrialActor, TrialContext
from autotune.run.cluster import Cluster, cluster
from autotune.run.engines import EngineKit
from autotune.run.ledger import Ledger
from autotune.run.options import SearchOptions
from autotune.run.packing import Packing
from autotune.run.progress import Progress, RunState
from autotune.run.recorder import Delivered, Recorder
from autotune.run.scheduler import DominanceScheduler
from autotune.run.searcher import VtuneSearcher
from autotune.run.vetting import Vetting, vetting
from autotune.search.study import Study, Suggestion
from autotune.spec.capacity_learned import Memory
from autotune.spec.catalogue import Catalogue
from autotune.spec.live import LiveSplit
from autotune.spec.problem import Problem
from autotune.spec.verdict import Broken, Invalid, Measured

log = logging.getLogger(__name__)

Watch = Callable[[Progress], None]

TICK_S = 0.5


def run_search(
    problem: Problem,
    options: SearchOptions,
    *,
    run: RunDir,
    catalogue: Catalogue,
    watch: Watch,
    memory: Memory | None = None,
) -> RunState:
    """Runs the search, or goes on with it where `run` already has trials, until its budget is used up. With
    `memory`, candidates that can't start for lack of it aren't tried (the default and the incumbent always are).

    Raises EnvironmentProblem before anything is launched, NoValidTrial when it ended without one measurement,
    KeyboardInterrupt on the second Ctrl-C (the first ends the running trials and returns "interrupted").
    """
    with run.lock():
        earlier = read_trials(run)
        header = run.header()
        run.update(state="running", finished_at=None, message="")
        with cluster(options, largest_engine=problem.space.largest_engine()) as machines:
            ledger = Ledger(
                problem=problem,
                devices=sum(machines.nodes.values()),
                records=earlier,
                spent_before_s=header.elapsed_s,
                offered_before_gpu_s=header.had_gpu_s,
            )
            run.update(devices=ledger.devices, **so_far(ledger))
            said: Callable[[], str] = str
            try:
                with interruptible(ledger, watch), _vetting(options, run, catalogue) as vetted:
                    said = vetted.says if vetted is not None else said
                    _tune(
                        problem,
                        options,
                        run=run,
                        catalogue=catalogue,
                        watch=watch,
                        machines=machines,
                        ledger=ledger,
                        memory=memory,
                        vetted=vetted,
                    )
            finally:
                state: RunState = "interrupted" if ledger.interrupted else "done"
                message = ". ".join(filter(None, (ledger.halted, said())))
                run.update(state=state, finished_at=time.time(), message=message, **so_far(ledger))
    if state == "done" and not any(isinstance(record.verdict, Measured) for record in ledger.records):
        run.update(state="failed")
        why = ledger.halted or "no trial gave a valid measurement"
        raise NoValidTrial(f"{why}. `vtune report {run.path}` lists the causes; logs are in {run.path / 'logs'}")
    return state


def _tune(
    problem: Problem,
    options: SearchOptions,
    *,
    run: RunDir,
    catalogue: Catalogue,
    watch: Watch,
    machines: Cluster,
    ledger: Ledger,
    memory: Memory | None,
    vetted: Vetting | None,
) -> None:
    split = LiveSplit.of(problem.space, catalogue.defaults()) if options.reuse else None
    study = Study.open(
        run.journal,
        problem,
        sampler=options.sampler,
        defaults=catalogue.defaults(),
        study_name=run.path.name,
        split=split,
    )
    retries = pick_up(study, ledger)
    here = NodeAffinitySchedulingStrategy(machines.driver_node, soft=False)
    recorder = ray.remote(num_cpus=0)(Recorder).options(scheduling_strategy=here).remote(run.path)
    for node, readings in _environments(machines, options).items():
        append_environment(run, readings, node=node)

    def take(trial: int, attempt: int) -> Delivered | None:
        found: Delivered | None = ray.get(recorder.take.remote(trial, attempt))
        run.update(**so_far(ledger))
        return found

    context = TrialContext(
        workload=problem.workload,
        slos=problem.slos,
        kit=EngineKit(options=options, known_flags=frozenset(catalogue.flags) | catalogue.server_flags, split=split),
        recorder=recorder,
        driver_pid=os.getpid(),
        driver_node=machines.driver_node,
    )
    searcher = VtuneSearcher(
        study=study,
        run=run,
        ledger=ledger,
        packing=Packing(nodes=machines.nodes, concurrency=concurrency(options, machines)),
        take=take,
        watch=watch,
        max_attempts=options.max_attempts,
        retries=retries,
        confirm=options.confirm,
        memory=memory,
        vetting=vetted,
        split=split,
    )
    trainable = tune.with_resources(
        tune.with_parameters(TrialActor, context=context),
        lambda config: machines.resources(config["task"].config.gpus),
    )
    with tempfile.TemporaryDirectory(prefix="vtune-tune-") as scratch, quiet_tune():
        tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                scheduler=DominanceScheduler(ledger),
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=_trial_name,
                trial_dirname_creator=_trial_name,
            ),
            run_config=tune.RunConfig(
                name=run.path.name, storage_path=scratch, verbose=0, callbacks=[Ticker(ledger, watch)]
            ),
        ).fit()


@contextmanager
def _vetting(options: SearchOptions, run: RunDir, catalogue: Catalogue) -> Iterator[Vetting | None]:
    """None for simulated engines, which vLLM has nothing to say about, and for a build for GPUs on a driver that has
    none: it would judge by what isn't there."""
    if options.simulate or (options.platform != "cpu" and not all_gpus()):
        yield None
        return
    with vetting(
        options.vllm_python or Path(sys.executable),
        log_file=run.path / "logs" / "validator.log",
        env=dict(os.environ),
        known_flags=frozenset(catalogue.flags) | catalogue.server_flags,
    ) as vetted:
        yield vetted


def so_far(ledger: Ledger) -> dict[str, float | None]:
    """Fields of the run's header."""
    offered = ledger.offered_gpu_s
    return {
        "elapsed_s": round(ledger.elapsed_s, 3),
        "offered_gpu_s": None if offered is None else round(offered, 3),
    }


def concurrency(options: SearchOptions, machines: Cluster) -> int | None:
    """CPU engines run one at a time per node unless told otherwise: they would share cores and memory bandwidth."""
    if options.concurrency is not None:
        return options.concurrency
    return None if machines.on_gpus else len(machines.nodes)


def pick_up(study: Study, ledger: Ledger) -> list[Suggestion]:
    """Reconciles the study with the history after a crash; returns the trials to run again.

    What is on disk but wasn't told is told now; what was asked but never ended is run again under its number; what
    ended is not repeated.
    """
    last = {record.trial: record for record in ledger.records}
    for number in study.running:
        if number in last and not isinstance(last[number].verdict, Broken | Invalid):
            study.tell(number, last[number].verdict)
    return [
        replace(study.retry(number), attempt=last[number].attempt + 1 if number in last else 1)
        for number in study.abandon_running()
    ]


def _environments(machines: Cluster, options: SearchOptions) -> dict[str, dict[str, object]]:
    """What each node is made of, read on the node."""
    if options.simulate:
        return {}
    read = ray.remote(num_cpus=0)(_environment)
    asked = {
        node: read.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            options.vllm_python
        )
        for node in machines.nodes
    }
    return {node: ray.get(answer) for node, answer in asked.items()}


def _environment(vllm_python: Path | None) -> dict[str, object]:
    return dict(read_environment(vllm_python or Path(sys.executable)).flat())


def _trial_name(trial: Any) -> str:
    """As Ray's dashboard shows it."""
    return f"trial-{trial.config['task'].name}"


class Ticker(tune.Callback):  # type: ignore[misc]  # ray has no types
    """Lets the watcher breathe between events."""

    def __init__(self, ledger: Ledger, watch: Watch) -> None:
        self._ledger, self._watch, self._last = ledger, watch, 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        """Ray Tune pickles its state for a restore that vtune doesn't use."""
        return (tune.Callback, ())

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        now = time.monotonic()
        if now - self._last >= TICK_S:
            self._last = now
            self._watch(self._ledger.progress())


@contextmanager
def interruptible(ledger: Ledger, watch: Watch) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) ends the running trials and keeps everything; the second raises at once."""

    def stop(number: int, frame: object) -> None:
        if ledger.interrupted:
            raise KeyboardInterrupt
        ledger.interrupted = True
        watch(ledger.progress("stopping: running trials are ended and kept; once more to stop at once"))

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def quiet_tune() -> Iterator[None]:
    """Tune warns of missing result files and long callbacks, which are no user's business here."""
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.train", "ray._private")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
