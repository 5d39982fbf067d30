"""Whether a setting that is changed in a running engine does what the same flag does at a cold start.

`python -m benchmarks.live_vs_cold [--quick]`. Real vLLM engines on this machine's CPU, one at a time, tiny-cpu's
workload. For each setting interleaved pairs, in random order within a pair and with the same fresh prompts: a plain
cold engine with the flag, and an engine that was started at the most (128 sequences, 4,096 tokens, everything on) and
then set. These engines run without CUDA graphs and compilation (enforce-eager), so graph sizes are the same on both
sides.

Verdict of a setting, from the 90 % interval (Student's t over the pairs' log ratios) of live / cold: `equal` where
that of output tok/s lies within 3 %, and those of median TTFT and TPOT within 5 %; `different` where one of them lies
outside; else `unsettled`. Figures: `settings_equal`, `settings_unsettled`, `settings_different`, and the ends of each
interval.

Then `changes_under_load`: max-num-seqs, max-num-batched-tokens and long-prefill-token-threshold are changed at random
while requests are sent. `changes_under_load_failed`: refused or lost changes, and lost requests;
`running_over_limit`: readings after a lowering with more requests running than before the reading and than the limit.
5 pairs, 500 changes during 10,000 requests; --quick: 1 pair, 20 changes during 400, not written.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import aiohttp
import numpy as np
import pyarrow as pa

from autotune.engine.live import LiveRefused, LiveSettings, LiveState
from autotune.run.engines import EngineKit, Engines
from autotune.run.options import SearchOptions
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.endpoint import Endpoint
from autotune.spec.live import LiveSplit
from autotune.spec.problem import Problem
from autotune.spec.verdict import Measured
from benchmarks.one_trial import measured, tiny_problem
from benchmarks.result import Result

SETTINGS: tuple[tuple[str, FlagValue], ...] = (
    ("max-num-seqs", 16),
    ("max-num-batched-tokens", 256),
    ("long-prefill-token-threshold", 32),
    ("enable-chunked-prefill", False),
    ("enable-prefix-caching", False),
    ("scheduling-policy", "priority"),
)
MOST: dict[str, FlagValue] = {"max-num-seqs": 128, "max-num-batched-tokens": 4096}
WITHIN = {"output_tok_per_s_per_gpu": 0.03, "ttft_p50_ms": 0.05, "tpot_p50_ms": 0.05}
T90 = {2: 6.314, 3: 2.920, 4: 2.353, 5: 2.132, 6: 2.015, 8: 1.895, 10: 1.833}
"""Student's t for a two-sided 90 % interval of the mean of so many pairs."""
PAIRS, CHANGES, REQUESTS = 5, 500, 10_000
AT_ONCE = 64

Row = dict[str, float | int | str]
Intervals = dict[str, tuple[float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1 pair, 20 changes during 400 requests; not written")
    quick = parser.parse_args().quick
    problem, catalogue = tiny_problem()
    kit = EngineKit(
        options=SearchOptions(vllm_python=Path(catalogue.python), platform=catalogue.platform),
        known_flags=frozenset(catalogue.flags) | catalogue.server_flags,
        split=replace(
            LiveSplit.of(problem.space, catalogue.defaults()), most={k: int(str(v)) for k, v in MOST.items()}
        ),
    )
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="vtune-live-") as logs:
        engines = kit.open(Path(logs))
        try:
            rows = [row for pair in range(1 if quick else PAIRS) for row in one_of_each(engines, problem, pair)]
            found = {name: intervals(rows, name) for name, _ in SETTINGS}
            verdicts = {name: verdict(ends) for name, ends in found.items() if ends}
            for name, ends in found.items():
                for metric, (low, high) in ends.items():
                    figures[f"{name}_{metric}_low"], figures[f"{name}_{metric}_high"] = low, high
            for kind in ("equal", "unsettled", "different"):
                figures[f"settings_{kind}"] = sum(one == kind for one in verdicts.values())
            print(verdicts, flush=True)
            figures |= under_load(
                engines, problem, changes=20 if quick else CHANGES, requests=400 if quick else REQUESTS
            )
        finally:
            engines.close()
    result = Result(name="live_vs_cold", figures=figures)
    print(result.table())
    if not quick:
        print(f"written: {result.write(pa.Table.from_pylist(rows))}")


def one_of_each(engines: Engines, problem: Problem, pair: int) -> list[Row]:
    rows: list[Row] = []
    default = problem.space.default()
    for name, value in SETTINGS:
        config = EngineConfig(model=default.model, flags={**default.flags, **MOST, name: value})
        sides = ["live", "cold"]
        if np.random.default_rng([pair, len(name)]).random() < 0.5:
            sides.reverse()
        for side in sides:
            launcher = engines.launcher("shared" if side == "live" else "plain")
            trial = f"{pair}-{name}-{side}"
            outcome = measured(config, problem, engines=engines, launcher=launcher, name=trial, seed=pair)
            if engines.reusing is not None:
                engines.reusing.close()  # an engine that idles still takes processor time
            assert isinstance(outcome.verdict, Measured), outcome.verdict
            shown = outcome.verdict.measurement
            row: Row = {"setting": name, "value": str(value), "pair": pair, "side": side}
            rows.append(row | {metric: float(shown.value(metric) or math.nan) for metric in WITHIN})
            print(rows[-1], flush=True)
    return rows


def intervals(rows: Sequence[Row], setting: str) -> Intervals:
    """By metric, of live / cold; empty for a single pair."""
    found: Intervals = {}
    for metric in WITHIN:
        sides = {
            side: [float(row[metric]) for row in rows if row["setting"] == setting and row["side"] == side]
            for side in ("live", "cold")
        }
        logs = [math.log(live / cold) for live, cold in zip(sides["live"], sides["cold"], strict=True)]
        if len(logs) < 2:
            continue
        half = T90[len(logs)] * statistics.stdev(logs) / math.sqrt(len(logs))
        middle = statistics.fmean(logs)
        found[metric] = math.exp(middle - half), math.exp(middle + half)
    return found


def verdict(ends: Intervals) -> str:
    inside = [1 - WITHIN[m] <= low and high <= 1 + WITHIN[m] for m, (low, high) in ends.items()]
    outside = [high < 1 - WITHIN[m] or low > 1 + WITHIN[m] for m, (low, high) in ends.items()]
    return "different" if any(outside) else "equal" if all(inside) else "unsettled"


def under_load(engines: Engines, problem: Problem, *, changes: int, requests: int) -> dict[str, float]:
    default = problem.space.default()
    config = engines.resolve(EngineConfig(model=default.model, flags={**default.flags, **MOST}))
    with engines.launcher("shared")(config, ("cpu",), name="changes", cancelled=lambda: False) as engine:
        assert isinstance(engine, Endpoint), engine
        return asyncio.run(_changed(engine, changes=changes, requests=requests))


async def _changed(engine: Endpoint, *, changes: int, requests: int) -> dict[str, float]:
    live = LiveSettings(port=int(engine.url.rpartition(":")[2]), api_key=engine.api_key)
    chance, lost, refused, over = np.random.default_rng(1), 0, 0, 0
    took_ms: list[float] = []
    at_once = asyncio.Semaphore(AT_ONCE)
    done = 0
    headers = {"Authorization": f"Bearer {engine.api_key}"}
    async with aiohttp.ClientSession(
        engine.url, headers=headers, connector=aiohttp.TCPConnector(limit=AT_ONCE)
    ) as http:

        async def send(number: int) -> None:
            nonlocal lost, done
            prompt = [int(token) for token in chance.integers(10, 1000, size=int(chance.integers(16, 64)))]
            tokens = 4 + number % 12
            body = {"model": engine.served_model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
            async with at_once:
                try:
                    async with http.post("/v1/completions", json=body) as response:
                        answer = await response.json()
                        lost += response.status != 200 or answer["usage"]["completion_tokens"] != tokens
                except (aiohttp.ClientError, TimeoutError):
                    lost += 1
                done += 1

        sending = asyncio.gather(*(send(number) for number in range(requests)))
        for change in range(changes):
            while done < change * requests // changes and not sending.done():
                await asyncio.sleep(0.01)
            seqs = int(chance.choice((1, 2, 4, 8, 16, 32, 64, 128)))
            settings: dict[str, FlagValue] = {
                "max-num-seqs": seqs,
                "max-num-batched-tokens": max(seqs, int(chance.choice((128, 256, 1024, 4096)))),
                "long-prefill-token-threshold": int(chance.choice((0, 16, 64))),
            }
            try:
                first: LiveState = await asyncio.to_thread(live.change, settings)
                then: LiveState = await asyncio.to_thread(live.read)
            except LiveRefused as why:
                print(why, flush=True)
                refused += 1
                continue
            took_ms.append(first.took_ms)
            over += then.running > max(seqs, first.running)
        await sending
    return {
        "changes_under_load": changes,
        "changes_under_load_failed": refused + lost,
        "running_over_limit": over,
        "requests_under_changes": requests,
        "change_p50_ms": statistics.median(took_ms),
    }


if __name__ == "__main__":
    main()
