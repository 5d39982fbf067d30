"""An engine that isn't there: memory and start time by formula, so that Ray and the search are tested in seconds.

It decides from the flags alone whether an engine would start, and what its start log would say. What such an engine
does under load is `autotune.load.simulated`'s affair.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from autotune.spec.config import EngineConfig, number_of
from autotune.spec.endpoint import Endpoint
from autotune.spec.graph_grid import largest_graph
from autotune.spec.measurement import EngineSample, StartFacts
from autotune.spec.verdict import Bound, EngineFailure

_CANCEL_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLauncher:
    """Starts engines of one model on one kind of GPU. GiB are per GPU; `weights_gib` is the whole model's.

    What a start allows may still be too much: each sequence that runs takes memory that the profiling run didn't
    foresee, outside of what gpu-memory-utilization allows. An engine that has no room left for it dies under load.

    `time_scale`: real seconds per simulated second; 0 never sleeps. Times it reports are always the simulated ones.
    The defaults resemble a 7B model in bfloat16 on an 80 GiB GPU.
    """

    time_scale: float = 0.0
    gpu_gib: float = 80.0
    weights_gib: float = 14.3
    overhead_gib: float = 1.2
    activation_gib_per_1k_tokens: float = 0.35
    sampler_gib_per_1k_seqs: float = 2.4
    unforeseen_gib_per_1k_seqs: float = 16.0
    graphs_gib: float = 0.6
    kv_mib_per_token: float = 0.0546875
    default_max_model_len: int = 4096
    fp8_kv: bool = True
    """Whether the GPU can keep the KV cache in fp8 (compute capability 8.9)."""
    import_s: float = 18.0
    load_s_per_gib: float = 0.2
    compile_s: float = 20.0
    graphs_s: float = 5.0

    def __call__(
        self, config: EngineConfig, devices: Sequence[str], *, name: str, cancelled: Callable[[], bool]
    ) -> AbstractContextManager[Endpoint | EngineFailure]:
        return self._launch(config, tuple(devices), name, cancelled)

    @contextmanager
    def _launch(
        self, config: EngineConfig, devices: tuple[str, ...], name: str, cancelled: Callable[[], bool]
    ) -> Iterator[Endpoint | EngineFailure]:
        outcome = self.outcome(config)
        start_s = self.start_s(config) if isinstance(outcome, StartFacts) else self.failed_after_s(config, outcome)
        if not _wait(start_s * self.time_scale, cancelled):
            yield EngineFailure(stage="start", cause="infra.cancelled", evidence="the start was given up")
            return
        if isinstance(outcome, EngineFailure):
            yield replace(outcome, after_s=start_s)
            return
        memory = _Memory(most_seqs=self.most_seqs(config))
        yield Endpoint(
            url=f"simulated://{name}",
            api_key="",
            served_model=config.model,
            config=config,
            devices=devices,
            argv=("simulated", config.model, *config.argv()),
            start_s=start_s,
            facts=outcome,
            scrape=_scrape,
            failure=memory.failure,
            bears=memory.bears,
            retune=lambda _settings: None,  # the load looks at the endpoint's configuration
        )

    def outcome(self, config: EngineConfig) -> StartFacts | EngineFailure:
        """What the start log would say. The same flags always end the same way."""
        flags = config.flags
        ranks = config.gpus
        quantized = flags.get("quantization") not in (None, "none")
        weights = self.weights_gib / ranks * (0.55 if quantized else 1.0)
        batched = number_of(flags, "max-num-batched-tokens", 2048)
        seqs = number_of(flags, "max-num-seqs", 128)
        length = number_of(flags, "max-model-len", self.default_max_model_len)
        if flags.get("enable-chunked-prefill") is False and batched < length:
            return EngineFailure(
                stage="config",
                cause="config.conflict",
                evidence=f"max_num_batched_tokens ({batched:g}) is smaller than max_model_len ({length:g})",
                exit_code=1,
                bounds=(
                    Bound(
                        flag="max-num-batched-tokens",
                        at_least=length,
                        when=f"max-model-len is {length:g} and chunked prefill is off",
                    ),
                ),
            )
        if batched < seqs:
            return EngineFailure(
                stage="config",
                cause="config.conflict",
                evidence=f"max_num_batched_tokens ({batched:g}) must be at least max_num_seqs ({seqs:g})",
                exit_code=1,
                bounds=(Bound(flag="max-num-batched-tokens", at_least=seqs, when=f"max-num-seqs is {seqs:g}"),),
            )
        if str(flags.get("kv-cache-dtype") or "auto").startswith("fp8") and not self.fp8_kv:
            return EngineFailure(
                stage="config",
                cause="config.unsupported",
                evidence=f"kv_cache_dtype {flags['kv-cache-dtype']} is not supported on this GPU",
                exit_code=1,
                bounds=(Bound(flag="kv-cache-dtype", none_of=(str(flags["kv-cache-dtype"]),)),),
            )
        graphs = self.graphs_gib * largest_graph(flags, max_num_seqs=int(seqs)) / 256
        peak = (
            self.overhead_gib
            + self.activation_gib_per_1k_tokens * batched / 1024 / ranks**0.5
            + self.sampler_gib_per_1k_seqs * seqs / 1024
        )
        budget = self.gpu_gib * number_of(flags, "gpu-memory-utilization", 0.9)
        need = weights + peak + graphs
        if weights + peak > self.gpu_gib or need > budget:
            missing = need - budget
            return EngineFailure(
                stage="profiling",
                cause="oom.profiling" if weights + peak > self.gpu_gib else "capacity.no_kv_blocks",
                evidence=f"needs {need:.2f} GiB per GPU, {budget:.2f} GiB are allowed",
                exit_code=1,
                shortfall=min(1.0, max(0.0, missing / self.gpu_gib)),
                facts={"missing_gib": missing},
            )
        kv_gib = budget - need
        fp8 = str(flags.get("kv-cache-dtype") or "auto").startswith("fp8")
        per_token_mib = self.kv_mib_per_token / ranks * (0.5 if fp8 else 1.0)
        kv_tokens = int(kv_gib * 1024 / per_token_mib)
        if kv_tokens < length:
            missing = (length - kv_tokens) * per_token_mib / 1024
            return EngineFailure(
                stage="kv_cache",
                cause="capacity.kv_too_small",
                evidence=f"one request of {length:g} tokens needs more than the KV cache's {kv_tokens} tokens",
                exit_code=1,
                bounds=(Bound(flag="max-model-len", at_most=float(kv_tokens)),),
                shortfall=min(1.0, missing / self.gpu_gib),
                facts={"kv_cache_tokens": float(kv_tokens), "missing_gib": missing},
            )
        return StartFacts(
            weights_gib=weights,
            kv_cache_gib=kv_gib,
            kv_cache_tokens=kv_tokens,
            max_concurrency=kv_tokens / length,
            compile_s=0.0 if flags.get("enforce-eager") is True else self.compile_s,
            graphs_s=self._graphs_s(config),
            graphs_gib=graphs,
            engine_init_s=self.start_s(config),
            vllm_version="simulated",
        )

    def most_seqs(self, config: EngineConfig) -> int:
        """How many sequences can run at once before the engine dies of them."""
        free_gib = self.gpu_gib * (1.0 - number_of(config.flags, "gpu-memory-utilization", 0.9))
        return int(max(0.0, free_gib) / self.unforeseen_gib_per_1k_seqs * 1024)

    def start_s(self, config: EngineConfig) -> float:
        """Simulated seconds from the start of the process to the first healthy answer."""
        return self._profiled_s(config) + self._graphs_s(config)

    def failed_after_s(self, config: EngineConfig, failure: EngineFailure) -> float:
        """Simulated seconds to the stage at which it fails: flags are read first, memory comes after compiling."""
        return self.import_s if failure.stage == "config" else self._profiled_s(config)

    def _profiled_s(self, config: EngineConfig) -> float:
        load_s = self.load_s_per_gib * self.weights_gib / config.gpus
        compile_s = 0.0 if config.flags.get("enforce-eager") is True else self.compile_s
        return self.import_s + load_s + compile_s + 2.0 * (config.gpus - 1)

    def _graphs_s(self, config: EngineConfig) -> float:
        """By the sizes that are captured; `graphs_s` for all up to 256."""
        seqs = int(number_of(config.flags, "max-num-seqs", 128))
        return self.graphs_s * largest_graph(config.flags, max_num_seqs=seqs) / 256


@dataclass(slots=True, kw_only=True)
class _Memory:
    """Of a running engine: full once more than `most_seqs` ran at the same time."""

    most_seqs: int
    died_with: int | None = None

    def bears(self, sequences: int) -> bool:
        if self.died_with is None and sequences > self.most_seqs:
            self.died_with = sequences
        return self.died_with is None

    def failure(self) -> EngineFailure | None:
        if self.died_with is None:
            return None
        return EngineFailure(
            stage="ready",
            cause="oom.runtime",
            evidence=f"out of memory with {self.died_with} sequences running, {self.most_seqs} fit",
            exit_code=1,
        )


def _wait(seconds: float, cancelled: Callable[[], bool]) -> bool:
    """Sleeps, asking `cancelled` on the way; False when it was."""
    end = time.monotonic() + seconds
    while not cancelled():
        left = end - time.monotonic()
        if left <= 0:
            return True
        time.sleep(min(left, _CANCEL_POLL_S))
    return False


def _scrape() -> EngineSample:
    """An engine that answers and exports nothing."""
    return EngineSample(at_s=time.monotonic())
