"""Which JSON lines are requests of the batch format, and how they travel as rows."""

from __future__ import annotations

import json
from typing import Any

CUSTOM_ID, METHOD, URL, BODY = "custom_id", "method", "url", "body"


def is_batch_line(value: dict[str, Any]) -> bool:
    """Whether an object is a request of the batch format: a body beside an id or a URL, and no prompt of its own."""
    return BODY in value and (CUSTOM_ID in value or URL in value) and not {"prompt", "messages"} & value.keys()


def as_row(value: dict[str, Any]) -> dict[str, Any]:
    """The line with its body as JSON text: bodies have different keys on every line, and are passed on as they came."""
    body = value.get(BODY)
    return value if body is None else value | {BODY: json.dumps(body, ensure_ascii=False)}
