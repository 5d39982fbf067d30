"""The few questions asked of a running engine over HTTP, with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from typing import Any

from autotune.engine.metrics import metric_sources, parse_metrics
from autotune.spec.measurement import EngineSample


def get(port: int, path: str, *, api_key: str | None = None, timeout_s: float = 2.0) -> tuple[int, str] | None:
    """(status, body) from the engine on this loopback port; None when it doesn't answer in time."""
    return ask(port, path, method="GET", api_key=api_key, timeout_s=timeout_s)


def ask(
    port: int,
    path: str,
    *,
    method: str,
    body: Mapping[str, Any] | None = None,
    api_key: str | None = None,
    timeout_s: float = 2.0,
) -> tuple[int, str] | None:
    """The same with any method; `body` is sent as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    headers = {"Connection": "close"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    content = None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, body=content, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def healthy(port: int) -> bool:
    answer = get(port, "/health", timeout_s=1.0)
    return answer is not None and answer[0] == 200


def who_answers(port: int, *, api_key: str, served_model: str) -> str | None:
    """None when it is the engine that was given this key and this model; otherwise what is wrong."""
    with_key = get(port, "/v1/models", api_key=api_key, timeout_s=10.0)
    if with_key is None or with_key[0] != 200:
        return f"GET /v1/models with this engine's key answers {with_key and with_key[0]}"
    try:
        names = [str(model["id"]) for model in json.loads(with_key[1])["data"]]
    except (ValueError, KeyError, TypeError):
        return "GET /v1/models does not answer as vLLM does"
    if served_model not in names:
        return f"it serves {names}, not {served_model!r}"
    without = get(port, "/v1/models", timeout_s=10.0)
    if without is None or without[0] != 401:
        return f"GET /v1/models without a key answers {without and without[0]}, not 401"
    return None


def scrape(port: int) -> EngineSample | None:
    """The engine's metrics now; None when it doesn't answer within 2 s."""
    page = _metrics_page(port)
    return None if page is None else parse_metrics(page, at_s=time.time())


def metric_names(port: int) -> dict[str, str | None] | None:
    """Which name each metric is read from, None for one under none of its names; None when it doesn't answer."""
    page = _metrics_page(port)
    return None if page is None else metric_sources(page)


def _metrics_page(port: int) -> str | None:
    answer = get(port, "/metrics")
    return answer[1] if answer is not None and answer[0] == 200 else None
