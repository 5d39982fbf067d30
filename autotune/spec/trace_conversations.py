"""Traces with texts: logs of OpenAI requests, and ShareGPT's conversations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.errors import UserError
from autotune.spec.trace import LaterTurn, TraceRequest

SAMPLING_KEYS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "logit_bias",
    "response_format",
    "structured_outputs",
    "tools",
    "chat_template_kwargs",
)
"""What of a request's body decides how it is answered. `stop` isn't among them: an answer has the length it had."""

_TIME_KEYS = ("timestamp", "time", "ts", "created_at", "created")
_SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant"}


def openai_rows(
    objects: Iterable[tuple[int, dict[str, object]]], *, file: Path, per_token: float
) -> Iterator[TraceRequest]:
    """One request per line: its body itself, or an object with it under `body` (as in batch files) or `request`.

    A time stands beside it or in it (seconds, milliseconds or ISO 8601); the answer, under `response`, says how many
    tokens there were. Without one the answer's length is max_tokens, and the prompt's is estimated.
    """
    first_s: float | None = None
    for line, row in objects:
        under = next((key for key in ("body", "request") if isinstance(row.get(key), dict)), None)
        body: Mapping[str, Any] = row[under] if under else row  # type: ignore[assignment]
        at = f"{under}." if under else ""
        response: Any = row.get("response")
        if isinstance(response, dict) and isinstance(response.get("body"), dict):
            response = response["body"]
        response = response if isinstance(response, dict) else {}
        chat = "messages" in body
        prompt = _messages(body, file, line, at) if chat else _prompt(body, file, line, at)
        n = _count(body.get("n"), file, line, f"{at}n") or 1
        used: Any = response.get("usage")
        used = used if isinstance(used, dict) else {}
        output = _count(used.get("completion_tokens"), file, line, "response.usage.completion_tokens")
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        output = max(1, output // n) if output else _count(limit, file, line, f"{at}max_tokens")
        if output is None:
            raise UserError(
                "the length of the answer isn't known",
                file=f"{file}:{line}",
                key=f"{at}max_tokens",
                remedy="give the request max_tokens, or the row a response with usage.completion_tokens",
            )
        told = _count(used.get("prompt_tokens"), file, line, "response.usage.prompt_tokens")
        text = json.dumps(prompt, ensure_ascii=False)
        exact = not chat and isinstance(prompt, list)
        time_s = _time_s(row, body, response, file, line)
        if first_s is None:
            first_s = time_s
        yield TraceRequest(
            at_s=None if time_s is None or first_s is None else time_s - first_s,
            prompt_tokens=len(prompt) if exact else told or _estimated(text, per_token),
            output_tokens=output,
            line=line,
            body=json.dumps(
                {"messages" if chat else "prompt": prompt} | {k: body[k] for k in SAMPLING_KEYS if k in body},
                ensure_ascii=False,
            ),
            chat=chat,
            streamed=bool(body.get("stream", False)),
            n=n,
        )


def sharegpt_rows(text: str, *, file: Path, per_token: float) -> list[TraceRequest]:
    """A list of objects with `conversations`: turns with `from` (human, gpt, system) and `value`.

    Whole conversations: each turn of the user's is a request. Lengths are estimated. What has no question followed by
    an answer is left out, as the published files have such.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UserError(f"this isn't JSON: {error}", file=file, remedy="give one JSON list of conversations") from None
    if not isinstance(found, list):
        raise UserError("a ShareGPT file is a JSON list", file=file, remedy="put the conversations into [...]")
    rows: list[TraceRequest] = []
    for place, entry in enumerate(found):
        turns = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
        if not isinstance(turns, list):
            raise UserError(
                "a conversation has a list of turns",
                file=file,
                key=f"{place}.conversations",
                value=str(entry)[:60],
                remedy="add it, or say which other format the file has",
            )
        row = _conversation(turns, file=file, place=place, per_token=per_token)
        if row is not None:
            rows.append(row)
    return rows


def _conversation(turns: list[Any], *, file: Path, place: int, per_token: float) -> TraceRequest | None:
    system: list[dict[str, str]] = []
    asked: list[tuple[str, int]] = []
    question: str | None = None
    for number, turn in enumerate(turns):
        value = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
        speaker = turn.get("from", turn.get("role")) if isinstance(turn, dict) else None
        if not isinstance(value, str) or not isinstance(speaker, str):
            raise UserError(
                "a turn has `from` and `value`, both text",
                file=file,
                key=f"{place}.conversations.{number}",
                value=str(turn)[:60],
                remedy="correct or remove it",
            )
        match _SPEAKERS.get(speaker):
            case "user":
                question = value
            case "assistant" if question is not None:
                asked.append((question, _estimated(value, per_token)))
                question = None
            case None if speaker == "system" and not asked:
                system = [{"role": "system", "content": value}]
            case _:
                pass
    if not asked:
        return None
    (opening, answer_tokens), *later = asked
    messages = [*system, {"role": "user", "content": opening}]
    return TraceRequest(
        at_s=None,
        prompt_tokens=sum(_estimated(message["content"], per_token) for message in messages),
        output_tokens=answer_tokens,
        line=place,
        body=json.dumps({"messages": messages}, ensure_ascii=False),
        chat=True,
        later=tuple(
            LaterTurn(prompt_tokens=_estimated(text, per_token), output_tokens=tokens, text=text)
            for text, tokens in later
        ),
    )


def _messages(body: Mapping[str, Any], file: Path, line: int, at: str) -> list[dict[str, Any]]:
    messages = body["messages"]
    wrong = "a chat's messages are a list of objects with `role` and text as `content`"
    if not isinstance(messages, list) or not messages:
        raise UserError(wrong, file=f"{file}:{line}", key=f"{at}messages", value=str(messages)[:60])
    for place, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else []
        is_text = isinstance(content, str) or bool(parts)
        is_text = is_text and all(isinstance(part, dict) and part.get("type") == "text" for part in parts)
        # What a tool was asked has no text of its own.
        calls = isinstance(message, dict) and content is None and message.get("tool_calls")
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or not (is_text or calls):
            raise UserError(
                wrong,
                file=f"{file}:{line}",
                key=f"{at}messages.{place}",
                value=str(message)[:60],
                remedy="remove rows with images or audio: only text is sent",
            )
    return messages


def _prompt(body: Mapping[str, Any], file: Path, line: int, at: str) -> str | list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    is_ids = isinstance(prompt, list) and prompt and all(type(one) is int and one >= 0 for one in prompt)
    if not (isinstance(prompt, str) and prompt) and not is_ids:
        raise UserError(
            "a request has `messages`, or a `prompt` that is text or a list of token ids",
            file=f"{file}:{line}",
            key=f"{at}prompt",
            value=None if prompt is None else str(prompt)[:60],
            remedy="give each row one of them, or say which other format the file has",
        )
    found: str | list[int] = prompt  # type: ignore[assignment]
    return found


def _count(given: object, file: Path, line: int, key: str) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise UserError(
            "this must be a whole number",
            file=f"{file}:{line}",
            key=key,
            value=given if isinstance(given, str | int | float) else str(given)[:40],
            remedy="correct it or remove the row",
        )
    return given or None


def _time_s(
    row: Mapping[str, Any], body: Mapping[str, Any], response: Mapping[str, Any], file: Path, line: int
) -> float | None:
    """Unix seconds. Answers carry the whole second in which they were made."""
    for said in (row, body, response):
        key = next((key for key in _TIME_KEYS if said.get(key) is not None), None)
        if key is None:
            continue
        given = said[key]
        if isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given):
            return given / 1e3 if given > 1e11 else float(given)
        try:
            time = datetime.fromisoformat(str(given))
        except ValueError:
            raise UserError(
                "this is no time",
                file=f"{file}:{line}",
                key=key,
                value=str(given)[:40],
                remedy="give seconds, milliseconds or ISO 8601, or leave the key out of every row",
            ) from None
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    return None


def _estimated(text: str, per_token: float) -> int:
    return max(1, math.ceil(len(text.encode()) / per_token))
