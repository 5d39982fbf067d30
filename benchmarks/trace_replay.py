"""Does a replay send what the trace says? Azure's conversation trace, and Mooncake's with its real prefix sharing.

    python -m benchmarks.trace_replay --trace-azure azure_llm_2023_conv.csv --trace-mooncake mooncake_conversation.jsonl

Both run on a real vLLM on the CPU, with a tiny model whose position limit is raised. The files are read here a second
time, by other code than the product's, and held against what the load client sent and what the server counted:

- arrivals: the scheduled time of every request is its row's time (the scales divided out); how late it was sent is
  reported;
- lengths: the server's own counts of prompt and output tokens are the row's, scaled;
- prefix sharing: of Mooncake's requests in the order of the file, a prompt's hits are its leading blocks whose ids came
  before, in whole blocks, the last token never; the sum over all prompt tokens is the expected share. The measured one
  is the growth of vLLM's counters prefix_cache_hits and prefix_cache_queries over the replay.

Scales: Azure's first 200 rows at twice their rate, prompts at a quarter and answers at a tenth of their length;
Mooncake's first 100 rows at their own rate, each 512-token block as 32 tokens, answers at a tenth. `--quick`: 40 rows
and 25.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from autotune.engine.model_files import resolve_model
from autotune.engine.vllm import VllmLauncher
from autotune.load.http import HttpLoader
from autotune.load.statistics import percentile
from autotune.spec.config import EngineConfig
from autotune.spec.endpoint import Endpoint
from autotune.spec.measurement import EngineSample, RequestRecord
from autotune.spec.workload_file import parse_workload
from benchmarks.result import Result

AZURE_RATE, AZURE_PROMPT, AZURE_OUTPUT = 2.0, 0.25, 0.1
MOONCAKE_BLOCK, BLOCK, MOONCAKE_OUTPUT = 512, 32, 0.1
LONGEST = 8192
SEED = 20231116

AZURE = """
name: azure
trace: {{file: {file}, format: azure, rows: {rows}, prompt_scale: {prompt}, output_scale: {output}}}
rungs: [{{name: azure, arrivals: trace, rate_scale: {rate}}}]
"""
MOONCAKE = """
name: mooncake
trace: {{file: {file}, format: mooncake, rows: {rows}, block_tokens: {block}, output_scale: {output}}}
rungs: [{{name: mooncake, arrivals: trace}}]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """As the file has it, scaled: when, and how many tokens in and out."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    records: tuple[RequestRecord, ...]
    hits: float
    queries: float


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Held against the files: arrivals, lengths, prefix sharing.")
    parser.add_argument("--trace-azure", type=Path, required=True, metavar="CSV")
    parser.add_argument("--trace-mooncake", type=Path, required=True, metavar="JSONL")
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    given = parser.parse_args(words)
    azure_file, mooncake_file = given.trace_azure.resolve(), given.trace_mooncake.resolve()
    azure = azure_rows(azure_file, 40 if given.quick else 200)
    mooncake, expected_share = mooncake_rows(mooncake_file, 25 if given.quick else 100)
    azure_text = AZURE.format(
        file=azure_file, rows=len(azure), prompt=AZURE_PROMPT, output=AZURE_OUTPUT, rate=AZURE_RATE
    )
    mooncake_text = MOONCAKE.format(file=mooncake_file, rows=len(mooncake), block=BLOCK, output=MOONCAKE_OUTPUT)
    with tempfile.TemporaryDirectory() as folder:
        config = EngineConfig(
            model=str(roomy_model(Path(folder) / "model")),
            flags={
                "enforce-eager": True,
                "block-size": BLOCK,
                "kv-cache-memory-bytes": "256M",
                "max-model-len": LONGEST,
                "enable-prefix-caching": True,
                "enable-prompt-tokens-details": True,
            },
        )
        launcher = VllmLauncher(vllm_python=Path(sys.executable), logs=Path(folder), platform="cpu")
        with launcher(config, ("cpu",), name="engine", cancelled=lambda: False) as endpoint:
            assert isinstance(endpoint, Endpoint), endpoint
            replayed_azure = replay(endpoint, azure_text)
            replayed_mooncake = replay(endpoint, mooncake_text)
    measured_share = replayed_mooncake.hits / replayed_mooncake.queries
    figures = {
        "azure_rate_scale": AZURE_RATE,
        "azure_prompt_scale": AZURE_PROMPT,
        "azure_output_scale": AZURE_OUTPUT,
        **compared("azure", azure, replayed_azure.records),
        "mooncake_rate_scale": 1.0,
        "mooncake_prompt_scale": BLOCK / MOONCAKE_BLOCK,
        "mooncake_output_scale": MOONCAKE_OUTPUT,
        **compared("mooncake", mooncake, replayed_mooncake.records),
        "prefix_hit_expected_share": expected_share,
        "prefix_hit_measured_share": measured_share,
        "prefix_hit_diff_points": 100 * abs(measured_share - expected_share),
    }
    traces = ("--trace-azure", azure_file.name, "--trace-mooncake", mooncake_file.name)
    result = Result(name="trace_replay", figures=figures, command=("python", "-m", "benchmarks.trace_replay", *traces))
    print(result.table())
    if given.quick:
        return  # a look, no result
    print(result.write(raw_table(azure=replayed_azure.records, mooncake=replayed_mooncake.records)))


def azure_rows(file: Path, count: int) -> list[Row]:
    with file.open() as text:
        table = [row for row, _ in zip(csv.DictReader(text), range(count), strict=False)]
    times = [datetime.fromisoformat(row["TIMESTAMP"]) for row in table]
    return [
        Row(
            at_s=(time - times[0]).total_seconds() / AZURE_RATE,
            prompt_tokens=max(1, round(int(row["ContextTokens"]) * AZURE_PROMPT)),
            output_tokens=max(1, round(int(row["GeneratedTokens"]) * AZURE_OUTPUT)),
        )
        for row, time in zip(table, times, strict=True)
    ]


def mooncake_rows(file: Path, count: int) -> tuple[list[Row], float]:
    """The rows, and the share of prompt tokens that a prefix cache without an end knows."""
    with file.open() as text:
        table = [json.loads(line) for line, _ in zip(text, range(count), strict=False)]
    rows: list[Row] = []
    seen: set[tuple[int, ...]] = set()
    hits = 0
    for row in table:
        ids, length = row["hash_ids"], row["input_length"]
        last = length - MOONCAKE_BLOCK * (len(ids) - 1)
        prompt = BLOCK * (len(ids) - 1) + max(1, round(last * BLOCK / MOONCAKE_BLOCK))
        known = 0
        while known < prompt // BLOCK and tuple(ids[: known + 1]) in seen:
            known += 1
        hits += BLOCK * min(known, (prompt - 1) // BLOCK)
        seen.update(tuple(ids[: end + 1]) for end in range(prompt // BLOCK))
        rows.append(
            Row(
                at_s=(row["timestamp"] - table[0]["timestamp"]) / 1e3,
                prompt_tokens=prompt,
                output_tokens=max(1, round(row["output_length"] * MOONCAKE_OUTPUT)),
            )
        )
    return rows, hits / sum(row.prompt_tokens for row in rows)


def replay(endpoint: Endpoint, text: str) -> Replayed:
    workload = parse_workload(text, file="benchmark")
    before = counted(endpoint.scrape())
    blocks = HttpLoader()(endpoint, workload, workload.rungs[0], seed=SEED)
    records = tuple(record for block in blocks for record in block.records)
    after = counted(endpoint.scrape())
    return Replayed(records=records, hits=after[0] - before[0], queries=after[1] - before[1])


def counted(sample: EngineSample | None) -> tuple[float, float]:
    assert sample is not None and sample.prefix_hits is not None and sample.prefix_queries is not None
    return sample.prefix_hits, sample.prefix_queries


def compared(name: str, rows: Sequence[Row], records: Sequence[RequestRecord]) -> dict[str, float]:
    """`..._wrong`: requests whose lengths no row of that time has, by the server's count; failed ones among them."""
    ordered = sorted(records, key=lambda record: record.scheduled_s)
    off_s = [abs(row.at_s - record.scheduled_s) for row, record in zip(rows, ordered, strict=True)]
    times_s = sorted({row.at_s for row in rows})
    asked = Counter((row.at_s, row.prompt_tokens, row.output_tokens) for row in rows)
    answered = Counter(
        (nearest(times_s, r.scheduled_s), r.prompt_tokens or 0, r.output_tokens or 0)
        for r in records
        if r.error is None
    )
    late_ms = [1e3 * (record.sent_s - record.scheduled_s) for record in records]
    return {
        f"{name}_requests": len(rows),
        f"{name}_failed": sum(record.error is not None for record in records),
        f"{name}_arrival_diff_max_s": max(off_s),
        f"{name}_send_lateness_p99_ms": percentile(late_ms, 0.99),
        f"{name}_lengths_wrong": (asked - answered).total(),
        f"{name}_prompt_tokens_p50": percentile([row.prompt_tokens for row in rows], 0.5),
        f"{name}_output_tokens_p50": percentile([row.output_tokens for row in rows], 0.5),
        f"{name}_rate_rps": (len(rows) - 1) / max(row.at_s for row in rows),
    }


def nearest(times_s: Sequence[float], at_s: float) -> float:
    """Records round to a microsecond."""
    return min(times_s, key=lambda time_s: abs(time_s - at_s))


def raw_table(**records: Sequence[RequestRecord]) -> pa.Table:
    names = ("scheduled_s", "sent_s", "first_token_s", "done_s", "prompt_tokens", "output_tokens", "cached_tokens")
    rows = [(trace, record) for trace, found in records.items() for record in found]
    columns = {name: [getattr(record, name) for _, record in rows] for name in names}
    return pa.table({"trace": [trace for trace, _ in rows], **columns})


def roomy_model(folder: Path) -> Path:
    """The tiny model with positions for the longest request: its weights don't depend on them."""
    shutil.copytree(resolve_model("builtin:tiny"), folder)
    config = folder / "config.json"
    positions = 2 ** math.ceil(math.log2(LONGEST))
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": positions}))
    return folder


if __name__ == "__main__":
    main()
