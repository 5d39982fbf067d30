"""How often a search calls a candidate better that isn't, and how often it finds one that is. Simulated.

`python -m benchmarks.aa [--quick]`. Each simulated search has a default and `CANDIDATES` candidates that are all the
same; every run differs by log-normal noise of the between-run CV that `benchmarks.baseline_noise` measured on CPU
engines (figure `between_run_cv`: of its quiet runs where it had at least `ENOUGH_QUIET`, else of all of them, as
`between_run_cv_quiet` says, 1 or 0). What is measured again, how often and in which order, and what is concluded, is
decided by the code that real searches use (`search.confirmation`, `search.conclusion`, `run.ledger`); only Ray and the
engines are left out. The budget is that of the shipped space tiny-cpu, a run takes `RUN_S`.

- `false_better_share`: of `searches` with nothing to find, those that conclude "better". Wanted: at most 0.05.
- `power_10pct`: one of the candidates is 10 % better in the first objective; the share of searches that conclude
  "better" with that one. Wanted: at least 0.8. `power_5pct` likewise, for 5 %.
- `false_better_share_cv_3pct`, `power_10pct_cv_3pct`, ...: the same for engines whose runs differ by 3 and 5 %.
- `confirmation_runs`: mean number of runs that screening and confirmation took, and `confirmation_s` their time.

Real A/A searches on CPU engines: `benchmarks.aa_real`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from autotune.history.record import Role, TrialRecord
from autotune.run.ledger import Ledger
from autotune.search.conclusion import Conclusion, conclude
from autotune.search.confirmation import baseline_of, baseline_repeats, next_step
from autotune.spec.config import EngineConfig
from autotune.spec.measurement import Measurement, StartFacts
from autotune.spec.objective import Budget, Objective
from autotune.spec.problem import Problem
from autotune.spec.space import Choice, Dimension, SearchSpace
from autotune.spec.verdict import Books, Measured
from autotune.spec.workload import ClosedLoop, FixedLength, RequestShape, Rung, Workload
from benchmarks.result import Result, read

CANDIDATES = 30
SEARCHES, QUICK_SEARCHES = 400, 40
RUN_S = 6.0
"""A run of tiny-cpu on two cores, start and stop included, without the second that lies between two runs."""
WALL_S = 1200.0
ENOUGH_QUIET = 8
OTHER_CVS = (0.03, 0.05)
OBJECTIVES = (
    Objective(metric="output_tok_per_s_per_gpu", direction="maximize"),
    Objective(metric="ttft_p99_ms", direction="minimize"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """`right`: it concluded "better", with the one candidate that is."""

    better: bool
    right: bool
    gain: float | None
    runs: int


class SimulatedSearch:
    """Candidate 0 is `effect` better in the first objective, the rest are the default by other names."""

    def __init__(self, *, cv: float, effect: float, seed: int) -> None:
        self.cv, self.effect, self.seed = cv, effect, seed
        self.rng = np.random.default_rng([seed, 0xAA])
        self.now = 0.0
        self.ledger = Ledger(problem=problem(seed), devices=1, clock=lambda: self.now, began=0.0)

    def run(self) -> Searched:
        records = self.ledger.records
        self.measure("default", candidate(None))
        repeats = 0
        for number in self.rng.permutation(CANDIDATES).tolist():
            self.measure("search", candidate(number))
            started = sum(record.role in ("default", "search") for record in records)
            while repeats < baseline_repeats(started, CANDIDATES + 1):
                repeats += 1
                self.measure("baseline", candidate(None))
        newest = max(record.trial for record in records if record.role == "search")
        for screened in (False, True):
            step = next_step(
                records,
                OBJECTIVES[0],
                (),
                screened=screened,
                room=self.ledger.confirmation_runs(slots=1, since=newest),
                seed=self.seed,
            )
            for repeat in step.repeats:
                self.measure(repeat.role, repeat.config)
            if any(repeat.role == "confirm" for repeat in step.repeats) or not step.repeats:
                break
        found: Conclusion | None = conclude(records, OBJECTIVES, ())
        winner = found.winner if found is not None else None
        return Searched(
            better=winner is not None,
            right=winner is not None and self.effect > 0 and winner.config == candidate(0),
            gain=winner.gains[OBJECTIVES[0].metric].gain if winner is not None else None,
            runs=sum(record.role in ("screen", "confirm") for record in records),
        )

    def measure(self, role: Role, config: EngineConfig) -> None:
        assert baseline_of(self.ledger.records) in (None, candidate(None))
        noise = np.exp(self.cv * self.rng.standard_normal(2))
        effect = 1 + (self.effect if config == candidate(0) else 0.0)
        measurement = Measurement(
            rung="busy",
            complete=True,
            duration_s=3.5,
            requests=120,
            finished=120,
            failed=0,
            gpus=1,
            output_tok_per_s_per_gpu=float(2500.0 * effect * noise[0]),
            ttft_p99_ms=float(200.0 * noise[1]),
        )
        began, self.now = self.now, self.now + RUN_S + 1.0
        record = TrialRecord(
            trial=len(self.ledger.records),
            attempt=1,
            role=role,
            verdict=Measured(measurement=measurement),
            config=config,
            point={},
            seed=0,
            workload="busy",
            measurements=(measurement,),
            facts=StartFacts(),
            books=Books(load_s=RUN_S),
            gpus=1,
            devices=("cpu",),
            node="here",
            argv=(),
            engine_reused=False,
            started_at=began,
            ended_at=began + RUN_S,
        )
        self.ledger.records.append(record)


def candidate(number: int | None) -> EngineConfig:
    return EngineConfig(model="m", flags={} if number is None else {"candidate": number})


def problem(seed: int) -> Problem:
    return Problem(
        space=SearchSpace(
            name="aa",
            model="m",
            dimensions=(Dimension(name="candidate", domain=Choice(values=tuple(range(CANDIDATES)))),),
        ),
        workload=Workload(
            name="busy",
            shapes=(RequestShape(prompt=FixedLength(tokens=64), output=FixedLength(tokens=24)),),
            rungs=(Rung(name="busy", arrivals=ClosedLoop(concurrency=32), requests=120, duration_s=3.5),),
            reference_rungs=("busy",),
        ),
        objectives=OBJECTIVES,
        slos=(),
        budget=Budget(trials=CANDIDATES + 1, wall_s=WALL_S),
        seed=seed,
    )


def searches(count: int, *, cv: float, effect: float) -> Iterator[Searched]:
    for seed in range(count):
        yield SimulatedSearch(cv=cv, effect=effect, seed=seed).run()


def measured_cv() -> tuple[float, bool]:
    """The CV of the first objective, and whether it is of quiet runs."""
    figures = read("baseline_noise").figures
    quiet = figures["quiet_runs"] >= ENOUGH_QUIET and "cv_output_tok_per_s" in figures
    return figures["cv_output_tok_per_s" if quiet else "cv_all_output_tok_per_s"], quiet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEARCHES} searches of each kind; not written")
    quick = parser.parse_args().quick
    count = QUICK_SEARCHES if quick else SEARCHES
    cv, is_quiet = measured_cv()
    figures: dict[str, float] = {"searches": count, "between_run_cv": cv, "between_run_cv_quiet": float(is_quiet)}
    rows: list[dict[str, float | bool | None]] = []
    for at, suffix in ((cv, ""), *((other, f"_cv_{round(100 * other)}pct") for other in OTHER_CVS)):
        for effect, name in ((0.0, "false_better_share"), (0.10, "power_10pct"), (0.05, "power_5pct")):
            found = list(searches(count, cv=at, effect=effect))
            figures[f"{name}{suffix}"] = sum(s.right if effect else s.better for s in found) / count
            rows += [
                {"cv": at, "effect": effect, "better": s.better, "right": s.right, "gain": s.gain, "runs": s.runs}
                for s in found
            ]
            if not effect:
                figures[f"confirmation_runs{suffix}"] = math.fsum(s.runs for s in found) / count
                figures[f"confirmation_s{suffix}"] = figures[f"confirmation_runs{suffix}"] * (RUN_S + 1.0)
    result = Result(name="aa", figures=figures)
    print(result.table())
    if not quick:
        print(f"written: {result.write(pa.Table.from_pylist(rows))}")


if __name__ == "__main__":
    main()
