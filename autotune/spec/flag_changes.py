"""Flags that vLLM once had, and what does their job now.

Each was a flag of `vllm serve` in some release and is none in 0.32; what replaces it is there
(tests/engine/test_catalogue_installed.py holds both). Only used to word an error: a flag that the installed vLLM has is
never looked up here.
"""

from __future__ import annotations

from collections.abc import Mapping

REPLACED: Mapping[str, str] = {
    "use-v2-block-manager": "remove it: there is one block manager now",
    "num-scheduler-steps": "remove it: multi-step scheduling went with the V0 engine",
    "multi-step-stream-outputs": "remove it: multi-step scheduling went with the V0 engine",
    "max-num-partial-prefills": "use long-prefill-token-threshold to bound what one long prompt takes of a step",
    "max-long-partial-prefills": "use long-prefill-token-threshold to bound what one long prompt takes of a step",
    "swap-space": "remove it: the V1 engine recomputes preempted requests instead of swapping them",
    "preemption-mode": "remove it: the V1 engine always recomputes preempted requests",
    "scheduler-delay-factor": "remove it: it went with the V0 engine",
    "num-lookahead-slots": "remove it: speculation sizes its own slots",
    "max-seq-len-to-capture": "use max-cudagraph-capture-size",
    "cuda-graph-sizes": "use max-cudagraph-capture-size",
    "full-cuda-graph": "use compilation-config.cudagraph_mode: FULL",
    "disable-log-requests": "remove it: requests aren't logged unless enable-log-requests is given",
    "speculative-model": "use speculative-config.model",
    "num-speculative-tokens": "use speculative-config.num_speculative_tokens",
    "speculative-draft-tensor-parallel-size": "use speculative-config.draft_tensor_parallel_size",
    "ngram-prompt-lookup-max": "use speculative-config.prompt_lookup_max",
    "ngram-prompt-lookup-min": "use speculative-config.prompt_lookup_min",
    "guided-decoding-backend": "use structured-outputs-config.backend",
    "rope-scaling": "use hf-overrides",
    "rope-theta": "use hf-overrides",
    "device": "remove it: the platform is found by vLLM, and a CPU needs the CPU build",
    "worker-use-ray": "use distributed-executor-backend: ray",
    "engine-use-ray": "use distributed-executor-backend: ray",
    "disable-async-output-proc": "use async-scheduling",
}
