"""Changes settings of a running engine, so that the next trial needs no start of its own.

A plugin of vLLM (entry point group vllm.general_plugins) and a middleware of its API server, in one module without
dependencies. `engine.live` puts it, as `vtune_live_settings`, into the import path of an engine that it starts; it
does nothing where VTUNE_LIVE_SETTINGS isn't "1". Works by feature detection (vLLM 0.20 to 0.33): what this vLLM has
no attribute for is named under "missing", with the reason, and never set.

    GET  /vtune/live-settings                                                  -> state
    POST /vtune/live-settings {"set": {FLAG: VALUE}, "reset_prefix_cache": bool} -> state as it is then, or {"error"}

with the engine's own key (`Authorization: Bearer $VLLM_API_KEY`). Flags are spelled as vLLM spells them; besides
`usable-kv-blocks`. State: {"settings", "caps", "missing", "running", "waiting", "block_size", "max_model_len",
"took_ms"}.

A change is judged as a cold start would judge it before anything is touched (vllm/config/scheduler.py,
`verify_max_model_len`), and takes place between two steps of the engine: EngineCore serves utility calls by the name of
a method there. It never exceeds what the engine was started with (`caps`): runner slots, buffers and the memory profile
were sized by that.
"""

from __future__ import annotations

import hmac
import json
import os
import time
from typing import Any

PATH = "/vtune/live-settings"
METHOD = "vtune_live_settings"
SWITCH = "VTUNE_LIVE_SETTINGS"

SEQS, TOKENS, LONG = "max-num-seqs", "max-num-batched-tokens", "long-prefill-token-threshold"
CHUNKED, CACHING, POLICY = "enable-chunked-prefill", "enable-prefix-caching", "scheduling-policy"
BLOCKS = "usable-kv-blocks"
IDLE_ONLY = (CACHING, BLOCKS)


def register() -> None:
    """Called by vLLM in each of its processes; the one with the engine's core is among them."""
    if os.environ.get(SWITCH) != "1":
        return
    from vllm.v1.engine.core import EngineCore

    if not hasattr(EngineCore, METHOD):
        setattr(EngineCore, METHOD, lambda core, request: answer(core, request))


# ------------------------------------------------------------------ in the engine's core


class Refused(ValueError):
    """A cold start would refuse it too, or this engine can't do it now."""


def answer(core: Any, request: dict[str, Any]) -> dict[str, Any]:
    """The state after what was asked for; {"error": why} with nothing changed."""
    began = time.perf_counter()
    try:
        if request:
            change(core, dict(request.get("set") or {}), reset=bool(request.get("reset_prefix_cache")))
        found = state(core)
    except Refused as refused:
        return {"error": str(refused)}
    found["took_ms"] = round((time.perf_counter() - began) * 1e3, 3)
    return found


def state(core: Any) -> dict[str, Any]:
    scheduler = core.scheduler
    running, waiting = counts(scheduler)
    return {
        "settings": settings(core),
        "caps": caps(core),
        "missing": missing(core),
        "running": running,
        "waiting": waiting,
        "block_size": getattr(scheduler, "block_size", None),
        "max_model_len": getattr(scheduler, "max_model_len", None),
    }


def counts(scheduler: Any) -> tuple[int, int]:
    """Requests that run and that wait, those between two states included."""
    if hasattr(scheduler, "get_request_counts"):
        running, waiting = scheduler.get_request_counts()
        return int(running), int(waiting)
    return len(scheduler.running), sum(len(getattr(scheduler, name)) for name in queues(scheduler))


def queues(scheduler: Any) -> list[str]:
    return [name for name in ("waiting", "kv_holding_waiting", "skipped_waiting") if hasattr(scheduler, name)]


def pool_of(core: Any) -> Any:
    return getattr(getattr(core.scheduler, "kv_cache_manager", None), "block_pool", None)


def managers(core: Any) -> list[Any]:
    coordinator = getattr(core.scheduler.kv_cache_manager, "coordinator", None)
    return list(getattr(coordinator, "single_type_managers", ()))


def admission(scheduler: Any) -> str:
    """The attribute that limits how many requests run. A version that has one of its own for it (0.32) takes a value
    below what is running; in others the scheduler asserts that it never is."""
    return "max_num_active_reqs" if hasattr(scheduler, "max_num_active_reqs") else "max_num_running_reqs"


def missing(core: Any) -> dict[str, str]:
    """{setting: why it can't be changed in this engine}."""
    scheduler, found = core.scheduler, {}
    config, pool = getattr(scheduler, "scheduler_config", None), pool_of(core)
    if not hasattr(scheduler, admission(scheduler)):
        found[SEQS] = "the scheduler has no max_num_running_reqs"
    if not hasattr(scheduler, "max_num_scheduled_tokens"):
        found[TOKENS] = "the scheduler has no max_num_scheduled_tokens"
    for flag, name in ((LONG, "long_prefill_token_threshold"), (CHUNKED, "enable_chunked_prefill")):
        if not hasattr(config, name):
            found[flag] = f"the scheduler's configuration has no {name}"
    if not hasattr(scheduler, "policy"):
        found[POLICY] = "the scheduler has no policy"
    if not (hasattr(pool, "enable_caching") and managers(core) and hasattr(core, "request_block_hasher")):
        found[CACHING] = "the KV cache has no switch for prefix caching"
    elif not started_with_caching(core):
        found[CACHING] = "the engine was started without prefix caching"
    if not all(hasattr(pool, name) for name in ("blocks", "num_gpu_blocks", "get_new_blocks", "free_blocks")):
        found[BLOCKS] = "the KV cache has no pool of blocks"
    return found


def started_with_caching(core: Any) -> bool:
    return bool(core.request_block_hasher or getattr(core, "_vtune_hasher", None))


def settings(core: Any) -> dict[str, Any]:
    """As they are in effect now; without those that are missing."""
    scheduler, pool, gone = core.scheduler, pool_of(core), missing(core)
    config = getattr(scheduler, "scheduler_config", None)
    policy = getattr(scheduler, "policy", None)
    found = {
        SEQS: getattr(scheduler, admission(scheduler), None),
        TOKENS: getattr(scheduler, "max_num_scheduled_tokens", None),
        LONG: getattr(config, "long_prefill_token_threshold", None),
        CHUNKED: getattr(config, "enable_chunked_prefill", None),
        CACHING: getattr(pool, "enable_caching", None),
        POLICY: getattr(policy, "value", policy),
        BLOCKS: getattr(pool, "num_gpu_blocks", None),
    }
    return {name: value for name, value in found.items() if name not in gone or name == CACHING}


def caps(core: Any) -> dict[str, Any]:
    """What the engine was started with, as it was when it was first asked."""
    if not hasattr(core, "_vtune_caps"):
        scheduler, pool = core.scheduler, pool_of(core)
        core._vtune_caps = {
            SEQS: getattr(scheduler, admission(scheduler), None),
            TOKENS: getattr(scheduler, "max_num_scheduled_tokens", None),
            BLOCKS: len(pool.blocks) if hasattr(pool, "blocks") else None,
        }
    return dict(core._vtune_caps)


def need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Refused(otherwise)


def judge(core: Any, wanted: dict[str, Any], *, reset: bool) -> dict[str, Any]:
    """All settings as they would be. Raises Refused where a cold start would, and where this engine can't."""
    now, most, gone = settings(core), caps(core), missing(core)
    unknown = sorted(set(wanted) - set(now) - set(gone))
    need(not unknown, f"{', '.join(unknown)}: no live setting")
    for name in set(wanted) & set(gone):
        need(wanted[name] == now.get(name), f"{name} can't be changed: {gone[name]}")
    then = {**now, **wanted}
    for name in (SEQS, TOKENS, LONG, BLOCKS):
        if name in wanted:
            value = wanted[name]
            need(
                isinstance(value, int) and not isinstance(value, bool), f"{name} must be a whole number, not {value!r}"
            )
    for name in (CHUNKED, CACHING):
        if name in wanted:
            need(isinstance(wanted[name], bool), f"{name} must be true or false, not {wanted[name]!r}")
    for name in (SEQS, TOKENS):
        if name in wanted:
            need(
                1 <= then[name] <= most[name],
                f"{name} {then[name]} isn't within 1 and {most[name]}, its value at start",
            )
    scheduler = core.scheduler
    length, block = scheduler.max_model_len, getattr(scheduler, "block_size", 1)
    if SEQS in then and TOKENS in then:
        need(then[TOKENS] >= then[SEQS], f"{TOKENS} {then[TOKENS]} is less than {SEQS} {then[SEQS]}")
    if CHUNKED in then and TOKENS in then and not then[CHUNKED]:
        need(then[TOKENS] >= length, f"without chunked prefill {TOKENS} {then[TOKENS]} must be max-model-len {length}")
    if LONG in wanted:
        need(0 <= then[LONG] <= length, f"{LONG} {then[LONG]} isn't within 0 and max-model-len {length}")
    if POLICY in wanted:
        need(then[POLICY] in ("fcfs", "priority"), f"{POLICY} {then[POLICY]!r} is neither fcfs nor priority")
    if BLOCKS in wanted:
        least = -(-length // block) + 1  # one request of full length, and the pool's own empty block
        need(least <= then[BLOCKS] <= most[BLOCKS], f"{BLOCKS} {then[BLOCKS]} isn't within {least} and {most[BLOCKS]}")
    running, waiting = counts(scheduler)
    if running or waiting:
        changed = [name for name in IDLE_ONLY if name in wanted and wanted[name] != now[name]]
        changed += ["the prefix cache"] * reset
        need(not changed, f"{' and '.join(changed)}: only of an idle engine ({running} running, {waiting} waiting)")
    if SEQS in wanted and admission(scheduler) == "max_num_running_reqs":
        need(running <= then[SEQS], f"{running} requests are running, and this vLLM can't go on with more than {SEQS}")
    return then


def change(core: Any, wanted: dict[str, Any], *, reset: bool) -> None:
    """All of it or nothing. Raises Refused."""
    now = settings(core)
    then = judge(core, wanted, reset=reset)
    scheduler = core.scheduler
    config = scheduler.scheduler_config
    leaves_caching = CACHING in wanted and wanted[CACHING] != now[CACHING] and not wanted[CACHING]
    if reset or leaves_caching:
        need(bool(scheduler.reset_prefix_cache()), "the prefix cache can't be reset now")
    if SEQS in wanted:
        setattr(scheduler, admission(scheduler), then[SEQS])
    if TOKENS in wanted:
        scheduler.max_num_scheduled_tokens = then[TOKENS]
    if LONG in wanted:
        config.long_prefill_token_threshold = then[LONG]
    if CHUNKED in wanted:
        config.enable_chunked_prefill = then[CHUNKED]
    if POLICY in wanted and then[POLICY] != now[POLICY]:
        set_policy(scheduler, then[POLICY])
    if CACHING in wanted and then[CACHING] != now[CACHING]:
        set_caching(core, on=then[CACHING])
    if BLOCKS in wanted and then[BLOCKS] != now[BLOCKS]:
        set_blocks(core, then[BLOCKS])


def set_policy(scheduler: Any, policy: str) -> None:
    """Queues are made anew: their kind depends on the policy."""
    from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue

    scheduler.policy = SchedulingPolicy(policy)
    for name in queues(scheduler):
        queue = create_request_queue(scheduler.policy)
        for request in list(getattr(scheduler, name)):
            queue.add_request(request)
        setattr(scheduler, name, queue)


def set_caching(core: Any, *, on: bool) -> None:
    """Requests that carry no hashes of their blocks are neither looked up nor kept."""
    if on:
        core.request_block_hasher = core._vtune_hasher
    else:
        core._vtune_hasher, core.request_block_hasher = core.request_block_hasher, None
    manager = core.scheduler.kv_cache_manager
    for part in (manager, manager.block_pool, *managers(core)):
        part.enable_caching = on


def set_blocks(core: Any, wanted: int) -> None:
    """Takes blocks out of circulation, or gives some back."""
    manager, pool = core.scheduler.kv_cache_manager, pool_of(core)
    held = list(getattr(core, "_vtune_held", ()))
    fewer = pool.num_gpu_blocks - wanted
    if fewer > 0:
        held += pool.get_new_blocks(fewer)
    else:
        pool.free_blocks(held[fewer:])
        held = held[:fewer]
    core._vtune_held = held
    pool.num_gpu_blocks = wanted  # so that usage and the check of a reset count what there is
    if hasattr(manager, "watermark_blocks"):
        manager.watermark_blocks = int(getattr(core.scheduler.scheduler_config, "watermark", 0.0) * wanted)


# ------------------------------------------------------------------ in the API server


class LiveSettings:
    """ASGI middleware; other requests pay one comparison of strings."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self.app(scope, receive, send)
            return
        status, found = await self.respond(scope, receive)
        body = json.dumps(found).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def respond(self, scope: Any, receive: Any) -> tuple[int, dict[str, Any]]:
        key = os.environ.get("VLLM_API_KEY", "")
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not key or not hmac.compare_digest(given, b"Bearer " + key.encode()):
            return 401, {"error": "needs the engine's key"}
        if scope["method"] not in ("GET", "POST"):
            return 405, {"error": "GET or POST"}
        body = b""
        while scope["method"] == "POST":
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        try:
            request = json.loads(body) if body else {}
        except ValueError:
            request = None
        if not isinstance(request, dict):
            return 400, {"error": "the body must be a JSON object"}
        call = getattr(getattr(scope["app"].state.engine_client, "engine_core", None), "call_utility_async", None)
        if call is None:
            return 501, {"error": "this vLLM's API server has no way to call its engine core"}
        try:
            found = await call(METHOD, request)
        except Exception as error:  # whatever vLLM raises, the server must go on
            return 500, {"error": f"{type(error).__name__}: {error}"}
        return (409 if "error" in found else 200), found
