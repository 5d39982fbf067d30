"""What a death says of the configuration that ran, where its engine was started for others too. Pure."""

from __future__ import annotations

from dataclasses import replace

from autotune.spec.config import EngineConfig
from autotune.spec.verdict import Broken, Infeasible
from autotune.trial.climb import Outcome


def blameless(outcome: Outcome, config: EngineConfig) -> Outcome:
    """An engine that was started for several configurations and died says nothing about the one that ran at the end:
    that one is tried again in an engine of its own."""
    shared = outcome.reused or (outcome.launched is not None and outcome.launched.key != config.key)
    if not (shared and isinstance(outcome.verdict, Infeasible)):
        return outcome
    verdict = outcome.verdict
    error = f"{verdict.cause} in an engine that was started for other configurations too: {verdict.evidence}"
    return replace(outcome, verdict=Broken(error=error, cause="infra.shared_engine"))
