from __future__ import annotations

from autotune.run.idle_engines import LIVE_S, IdleEngines
from autotune.spec.config import EngineConfig
from autotune.spec.live import LiveSplit
from autotune.spec.verdict import Books, Broken, Infeasible
from autotune.trial.climb import Outcome
from autotune.trial.shared_engine import blameless

SPLIT = LiveSplit(defaults={"max-num-seqs": 128, "max-num-batched-tokens": 2048})


def engine(seqs: int, *, ranks: int = 1, block: int = 16) -> EngineConfig:
    return EngineConfig(model="m", flags={"max-num-seqs": seqs, "block-size": block, "tensor-parallel-size": ranks})


def test_the_engine_that_has_waited_longest_is_the_next() -> None:
    idle = IdleEngines(split=SPLIT)
    idle.ended("a", gpus=1, holds=engine(128, block=16))
    idle.ended("b", gpus=1, holds=engine(128, block=32))
    assert idle.reach(engine(64, block=16)) is True
    assert idle.reach(engine(64, block=32)) is False
    idle.taken("a")
    assert idle.reach(engine(64, block=32)) is True


def test_an_engine_serves_its_own_size_only() -> None:
    idle = IdleEngines(split=SPLIT)
    idle.ended("a", gpus=2, holds=engine(128, ranks=2))
    assert idle.reach(engine(64)) is False
    assert idle.reach(engine(64, ranks=2)) is True


def test_an_actor_that_keeps_no_engine_reaches_nothing() -> None:
    idle = IdleEngines(split=SPLIT)
    idle.ended("a", gpus=1, holds=engine(128))
    idle.ended("a", gpus=1, holds=None)
    assert idle.reach(engine(64)) is False


def test_nothing_is_said_of_costs_before_they_were_seen() -> None:
    idle = IdleEngines(split=SPLIT)
    idle.ended("a", gpus=1, holds=engine(128))
    assert idle.seconds([]) is None
    assert LIVE_S < 1
    assert IdleEngines(split=None).reach(engine(64)) is None


DEATH = Infeasible(cause="oom.runtime", evidence="died")


def test_a_death_in_an_engine_of_several_configurations_blames_none() -> None:
    for outcome in (
        Outcome(verdict=DEATH, books=Books(), reused=True),
        Outcome(verdict=DEATH, books=Books(), launched=engine(256)),
    ):
        verdict = blameless(outcome, engine(64)).verdict
        assert isinstance(verdict, Broken)
        assert verdict.cause == "infra.shared_engine"


def test_a_death_in_an_engine_of_its_own_is_its_own() -> None:
    assert blameless(Outcome(verdict=DEATH, books=Books(), launched=engine(64)), engine(64)).verdict == DEATH
    assert blameless(Outcome(verdict=DEATH, books=Books()), engine(64)).verdict == DEATH
