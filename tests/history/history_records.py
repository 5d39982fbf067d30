"""Trial records for the history's tests: one of each verdict, and strategies that make any."""

from __future__ import annotations

from hypothesis import strategies as st

from autotune.history.record import Role, TrialRecord
from autotune.spec.config import EngineConfig
from autotune.spec.measurement import METRICS, Measurement, StartFacts
from autotune.spec.verdict import Books, Bound, Broken, Dominated, Infeasible, Invalid, Measured, Verdict

COUNTED = {"preemptions"}
number = st.floats(allow_nan=False, allow_infinity=False, width=64)
text = st.text(st.characters(codec="utf-8"), max_size=20)
flag_value = st.one_of(st.booleans(), st.integers(-(2**60), 2**60), number, text, st.none())
flags = st.dictionaries(st.sampled_from(["max-num-seqs", "kv-cache-dtype", "a.b", "enforce-eager"]), flag_value)
count = st.integers(0, 10**9)


@st.composite
def measurements(draw: st.DrawFn, gpus: int = 1) -> Measurement:
    chosen = draw(st.lists(st.sampled_from(METRICS), unique=True, max_size=6))
    values = {m: draw(count) if m in COUNTED else draw(number) for m in chosen}
    intervals = {m: (draw(number), draw(number)) for m in draw(st.lists(st.sampled_from(METRICS), max_size=3))}
    return Measurement(
        rung=draw(text),
        complete=draw(st.booleans()),
        duration_s=draw(number),
        requests=draw(count),
        finished=draw(count),
        failed=draw(count),
        gpus=gpus,
        concurrency=draw(st.none() | st.integers(1, 2048)),
        intervals=intervals,
        **values,  # type: ignore[arg-type]
    )


bounds = st.builds(
    Bound,
    flag=text,
    at_most=st.none() | st.floats(-1e6, 1e6),
    one_of=st.none() | st.lists(text, max_size=2).map(tuple),
    unknown=st.none() | st.just(True),
    when=st.none() | text,
)


def verdicts(gpus: int) -> st.SearchStrategy[Verdict]:
    return st.one_of(
        st.builds(Measured, measurement=measurements(gpus)),
        st.builds(
            Infeasible,
            cause=text,
            evidence=text,
            shortfall=st.floats(0, 1),
            measurement=st.none() | measurements(gpus),
            bounds=st.lists(bounds, max_size=2).map(tuple),
        ),
        st.builds(Dominated, by=st.lists(count, max_size=3).map(tuple), measurement=measurements(gpus)),
        st.builds(Invalid, reasons=st.lists(text, max_size=3).map(tuple)),
        st.builds(Broken, error=text, cause=text),
    )


@st.composite
def trial_records(draw: st.DrawFn) -> TrialRecord:
    gpus = draw(st.integers(1, 8))
    roles: list[Role] = ["default", "incumbent", "search", "baseline", "confirm"]
    known = st.none() | number
    return TrialRecord(
        trial=draw(st.integers(0, 10**6)),
        attempt=draw(st.integers(1, 9)),
        role=draw(st.sampled_from(roles)),
        verdict=draw(verdicts(gpus)),
        config=EngineConfig(model=draw(text), flags=draw(flags), env=draw(st.dictionaries(text, text, max_size=2))),
        point=draw(flags),
        seed=draw(count),
        workload=draw(text),
        measurements=tuple(draw(st.lists(measurements(gpus), max_size=2))),
        facts=draw(
            st.builds(StartFacts, weights_gib=known, kv_cache_tokens=st.none() | count, vllm_version=st.none() | text)
        ),
        books=draw(st.builds(Books, start_s=number, warm_up_s=number, load_s=number, stop_s=number, dead_s=number)),
        gpus=gpus,
        devices=tuple(draw(st.lists(text, max_size=2))),
        node=draw(text),
        argv=tuple(draw(st.lists(text, max_size=3))),
        engine_reused=draw(st.booleans()),
        started_at=draw(number),
        ended_at=draw(number),
        versions=draw(st.dictionaries(text, text, max_size=2)),
    )


def a_trial(trial: int = 0, attempt: int = 1, *, verdict: Verdict | None = None, **flags: object) -> TrialRecord:
    """A plausible trial; `flags` with underscores for dashes."""
    measurement = Measurement(
        rung="steady",
        complete=True,
        duration_s=10.0,
        requests=100,
        finished=100,
        failed=0,
        gpus=1,
        output_tok_per_s_per_gpu=900.0 + trial,
        ttft_p99_ms=120.5,
        intervals={"ttft_p99_ms": (110.0, 131.0)},
    )
    verdict = verdict or Measured(measurement=measurement)
    shown = getattr(verdict, "measurement", None)
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    return TrialRecord(
        trial=trial,
        attempt=attempt,
        role="default" if trial == 0 else "search",
        verdict=verdict,
        config=EngineConfig(model="m", flags=given),  # type: ignore[arg-type]
        point={},
        seed=7,
        workload="chat",
        measurements=() if shown is None else (shown,),
        facts=StartFacts(kv_cache_tokens=4096),
        books=Books(start_s=2.0, load_s=10.0),
        gpus=1,
        devices=("cpu",),
        node="here",
        argv=("vllm", "serve", "m"),
        engine_reused=False,
        started_at=1.7e9,
        ended_at=1.7e9 + 12,
    )
