"""A planned request as the HTTP request that vLLM's OpenAI server takes."""

from __future__ import annotations

import json
from typing import Any

from autotune.load.traffic import PlannedRequest


def path_of(planned: PlannedRequest) -> str:
    return "/v1/chat/completions" if planned.form.chat else "/v1/completions"


def body_of(planned: PlannedRequest, *, model: str) -> bytes:
    """Its JSON. An answer is made exactly as long as planned (`ignore_eos`), unless a grammar says where it ends."""
    head: dict[str, Any] = {
        "model": model,
        "max_tokens": planned.output_tokens,
        "n": planned.n,
        # vLLM refuses n > 1 at temperature 0: greedy sequences would all be the same.
        "temperature": 0 if planned.n == 1 else 1,
        **json.loads(planned.form.parameters),
    }
    if planned.form.fixes_length:
        head["ignore_eos"] = True
    if "tools" in head:  # they are part of the prompt; calling one would need a parser, and end the answer early
        head["tool_choice"] = "none"
    if planned.form.streamed:
        head |= {"stream": True, "stream_options": {"include_usage": True}}
    if (salt := planned.salt) is not None:
        head["cache_salt"] = salt
    if planned.goes_on and not planned.form.chat:
        head["return_token_ids"] = True  # what was said is resent as the engine said it
    if planned.form.chat:
        head["messages"] = planned.messages()
    elif planned.body is not None:
        head["prompt"] = json.loads(planned.body)["prompt"]
    else:  # thousands of numbers: joined by hand in half of json's time
        text = json.dumps(head, ensure_ascii=False)
        return f'{text[:-1]},"prompt":[{",".join(map(str, planned.prompt()))}]}}'.encode()
    return json.dumps(head, ensure_ascii=False).encode()
