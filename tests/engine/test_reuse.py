"""Engines that outlive their trials; simulated, where what counts is who is started when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

import pytest

from autotune.engine.reuse import ReusingLauncher
from autotune.engine.simulated import SimulatedLauncher
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.endpoint import Endpoint
from autotune.spec.live import LiveSplit
from autotune.spec.verdict import EngineFailure

SPLIT = LiveSplit(defaults={"max-num-seqs": 128, "max-num-batched-tokens": 2048}, most={"max-num-seqs": 256}).without(
    ["long-prefill-token-threshold", "scheduling-policy"]
)


@dataclass
class Watched:
    """The simulated launcher, and which engines were started and ended."""

    inner: SimulatedLauncher = field(default_factory=SimulatedLauncher)
    started: list[EngineConfig] = field(default_factory=list)
    ended: int = 0
    dead: bool = False
    refuses: str | None = None

    def __call__(
        self, config: EngineConfig, devices: Sequence[str], *, name: str, cancelled: Callable[[], bool]
    ) -> AbstractContextManager[Endpoint | EngineFailure]:
        return self.engine(config, devices, name, cancelled)

    @contextmanager
    def engine(
        self, config: EngineConfig, devices: Sequence[str], name: str, cancelled: Callable[[], bool]
    ) -> Iterator[Endpoint | EngineFailure]:
        self.started.append(config)
        with self.inner(config, devices, name=name, cancelled=cancelled) as engine:
            if isinstance(engine, Endpoint):
                failure = EngineFailure(stage="ready", cause="oom.runtime", evidence="")
                engine = replace(
                    engine, failure=lambda: failure if self.dead else None, retune=lambda _settings: self.refuses
                )
            yield engine
        self.ended += 1


def config(**flags: FlagValue) -> EngineConfig:
    return EngineConfig(model="m", flags={name.replace("_", "-"): value for name, value in flags.items()})


def run(launcher: ReusingLauncher, wanted: EngineConfig) -> Endpoint:
    with launcher(wanted, ["0"], name="t", cancelled=lambda: False) as engine:
        assert isinstance(engine, Endpoint), engine
        assert engine.config == wanted
        return engine


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def launcher(watched: Watched) -> Iterator[ReusingLauncher]:
    launcher = ReusingLauncher(start=watched, split=SPLIT)
    yield launcher
    launcher.close()
    assert watched.ended == len(watched.started)


def test_one_engine_serves_candidates_that_differ_in_live_settings(launcher: ReusingLauncher, watched: Watched) -> None:
    engines = [run(launcher, config(max_num_seqs=seqs)) for seqs in (64, 128, 256)]
    assert [engine.reused for engine in engines] == [False, True, True]
    assert watched.started == [config(max_num_seqs=256)]
    assert engines[1].launched == config(max_num_seqs=256)
    assert engines[0].start_s > 10 > engines[1].start_s


def test_other_launch_flags_end_the_engine_first(launcher: ReusingLauncher, watched: Watched) -> None:
    run(launcher, config(max_num_seqs=64))
    with launcher(config(block_size=32), ["0"], name="t", cancelled=lambda: False):
        assert watched.ended == 1
    assert len(watched.started) == 2


def test_an_engine_that_died_is_not_kept(launcher: ReusingLauncher, watched: Watched) -> None:
    run(launcher, config(max_num_seqs=64))
    watched.dead = True
    run(launcher, config(max_num_seqs=128))
    assert launcher.holds is None
    assert len(watched.started) == 2


def test_an_engine_that_refuses_is_started_anew_for_the_candidate_alone(
    launcher: ReusingLauncher, watched: Watched
) -> None:
    watched.refuses = "it is busy"
    assert run(launcher, config(max_num_seqs=64)).launched == config(max_num_seqs=64)
    assert [c.flags["max-num-seqs"] for c in watched.started] == [256, 64]
    assert launcher.holds is None


def test_a_start_that_fails_for_several_candidates_is_repeated_for_one(watched: Watched) -> None:
    watched.inner = SimulatedLauncher(gpu_gib=20.0, sampler_gib_per_1k_seqs=16.0)
    launcher = ReusingLauncher(start=watched, split=SPLIT)
    engine = run(launcher, config(max_num_seqs=16))
    assert [c.flags["max-num-seqs"] for c in watched.started] == [256, 16]
    assert not engine.reused
    assert engine.ahead.dead_s > 0
    launcher.close()


def test_an_engine_of_its_own_is_started_with_its_flags_and_kept(launcher: ReusingLauncher, watched: Watched) -> None:
    run(launcher, config(max_num_seqs=128))
    with launcher.own(config(max_num_seqs=64), ["0"], name="t", cancelled=lambda: False) as engine:
        assert isinstance(engine, Endpoint)
        assert not engine.reused
    assert watched.started[-1] == config(max_num_seqs=64)
    assert run(launcher, config(max_num_seqs=32)).reused


def test_a_trial_that_raises_takes_its_engine_along(launcher: ReusingLauncher, watched: Watched) -> None:
    with pytest.raises(RuntimeError), launcher(config(), ["0"], name="t", cancelled=lambda: False):
        raise RuntimeError
    assert launcher.holds is None
    assert watched.ended == 1
