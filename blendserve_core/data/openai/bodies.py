"""From a line's URL and body to the columns that requests have everywhere else, or to that row's error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from blendserve_core.data.arrays import plain, texts
from blendserve_core.data.json_text import parse_json
from blendserve_core.data.openai.fields import (
    CHAT_NAMES,
    COMPLETION_NAMES,
    SHARED,
    Body,
    refuse_others,
    to_flag,
    to_token_ids,
    to_whole,
)  # fmt: skip
from blendserve_core.data.openai.lines import BODY, METHOD, URL
from blendserve_core.data.row_error import ErrorType, RowError
from blendserve_core.text.printable import quoted

CHAT_URL, COMPLETIONS_URL = "/v1/chat/completions", "/v1/completions"
# What that API gives a completion without max_tokens.
COMPLETION_MAX_TOKENS = 16
MAX_TOP_LOGPROBS = 20

REQUEST_SCHEMA = pa.schema(
    [
        ("messages", pa.large_string()), ("prompt", pa.large_string()), ("prompt_token_ids", pa.large_list(pa.int64())),
        ("max_tokens", pa.int64()), ("temperature", pa.float64()), ("top_p", pa.float64()), ("top_k", pa.int64()),
        ("min_p", pa.float64()), ("repetition_penalty", pa.float64()), ("presence_penalty", pa.float64()),
        ("frequency_penalty", pa.float64()), ("n", pa.int64()), ("seed", pa.int64()), ("stop", pa.list_(pa.string())),
        ("stop_token_ids", pa.list_(pa.int64())), ("ignore_eos", pa.bool_()), ("logprobs", pa.int64()),
        ("response_format", pa.large_string()),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Requests:
    """The rows of a batch in REQUEST_SCHEMA, and what is wrong with some of them; those are null throughout."""

    rows: pa.RecordBatch
    errors: dict[int, RowError]


class _BadRequest(ValueError):
    """A request that cannot be served, and of which kind its error is."""

    def __init__(self, kind: ErrorType, message: str) -> None:
        super().__init__(message)
        self.kind: ErrorType = kind


def read_requests(batch: pa.RecordBatch) -> Requests:
    """Read the column ``body`` (JSON text) of a batch, with ``url`` and ``method`` where it has them."""
    rows: list[dict[str, Any]] = []
    errors: dict[int, RowError] = {}
    columns = [_texts(batch, name) for name in (URL, METHOD, BODY)]
    for row, (url, method, body) in enumerate(zip(*columns, strict=True)):
        try:
            rows.append(_to_columns(url, method, body))
        except _BadRequest as error:
            rows.append({})
            errors[row] = RowError(error.kind, str(error))
    return Requests(pa.RecordBatch.from_pylist(rows, REQUEST_SCHEMA), errors)


def url_of(url: str | None, body: Body) -> str:
    """The endpoint of a request; without a URL the body tells which it is."""
    return url or (COMPLETIONS_URL if "prompt" in body else CHAT_URL)


def _texts(batch: pa.RecordBatch, name: str) -> list[str | None]:
    if name not in batch.schema.names or pa.types.is_null(batch.schema.field(name).type):
        return [None] * batch.num_rows
    return texts(plain(batch.column(name)))[0]


def _to_columns(url: str | None, method: str | None, text: str | None) -> dict[str, Any]:
    body = _parse(text)
    endpoint = url_of(url, body)
    if endpoint not in _READERS:
        raise _BadRequest("unsupported_url", f"url is {quoted(endpoint)}; served are {', '.join(_READERS)}")
    if method not in (None, "POST"):
        raise _BadRequest("invalid_parameter", f"method is {quoted(method)}; it must be POST")
    own_names, read = _READERS[endpoint]
    try:
        refuse_others(body, own_names)
        given = {name: value for name, value in body.items() if value is not None}
        return {name: check(name, given[name]) for name, check in SHARED.items() if name in given} | read(given)
    except _BadRequest:
        raise
    except ValueError as error:
        raise _BadRequest("invalid_parameter", str(error)) from error


def _parse(text: str | None) -> Body:
    if text is None:
        raise _BadRequest("invalid_parameter", "the line has no body")
    try:
        body = parse_json(text)
    except ValueError as error:
        raise _BadRequest("invalid_parameter", f"body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise _BadRequest("invalid_parameter", f"body is {quoted(body)}, not an object")
    return body


def _read_chat(body: Body) -> dict[str, Any]:
    columns: dict[str, Any] = {"messages": _conversation(body.get("messages"))}
    if "max_completion_tokens" in body:
        columns["max_tokens"] = to_whole("max_completion_tokens", body["max_completion_tokens"])
    top = to_whole("top_logprobs", body.get("top_logprobs", 0))
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise ValueError(f"top_logprobs is {top}; it must be from 0 to {MAX_TOP_LOGPROBS}")
    if to_flag("logprobs", body.get("logprobs", False)):
        columns["logprobs"] = top
    elif top:
        raise ValueError("top_logprobs needs logprobs: true")
    return columns


def _conversation(messages: Any) -> str:
    if not isinstance(messages, list) or not messages:
        raise _BadRequest("invalid_messages", "messages are missing, empty or no list")
    return json.dumps(messages, ensure_ascii=False)


def _read_completion(body: Body) -> dict[str, Any]:
    columns: dict[str, Any] = _prompt(body.get("prompt"))
    if "max_tokens" not in body:
        columns["max_tokens"] = COMPLETION_MAX_TOKENS
    if "logprobs" in body:
        columns["logprobs"] = to_whole("logprobs", body["logprobs"])
    return columns


def _prompt(prompt: Any) -> dict[str, Any]:
    """A text or token ids, also as the one entry of a list."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if isinstance(prompt, list) and prompt and not any(isinstance(item, str | list) for item in prompt):
        return {"prompt_token_ids": to_token_ids("prompt", prompt)}
    raise _BadRequest("invalid_prompt", f"prompt is {quoted(prompt)}; it must be one text, or one list of token ids")


_READERS: dict[str, tuple[frozenset[str], Callable[[Body], dict[str, Any]]]] = {
    CHAT_URL: (CHAT_NAMES, _read_chat),
    COMPLETIONS_URL: (COMPLETION_NAMES, _read_completion),
}
