"""Conversations as chat templates want them, checked so that every mistake is named instead of rendered."""

from __future__ import annotations

from typing import Any

from blendserve_core.text.printable import quoted

ROLES = ("system", "developer", "user", "assistant", "tool")


def to_messages(value: Any) -> list[dict[str, Any]]:
    """A row's conversation: messages with a known role and text content, without null fields.

    What follows on what is left to the chat template. Raises ValueError naming the message and what is wrong with it.
    """
    if not value:
        raise ValueError("messages are null or empty")
    if not isinstance(value, list):
        raise ValueError(f"messages are a {type(value).__name__}, not a list")
    messages = [_to_message(number, item) for number, item in enumerate(value, start=1)]
    if all(message["role"] in ("system", "developer") for message in messages):
        raise ValueError("messages have no user turn")
    return messages


def _to_message(number: int, item: Any) -> dict[str, Any]:
    if isinstance(item, list) and all(isinstance(pair, tuple) for pair in item):  # an Arrow map
        item = dict(item)
    if not isinstance(item, dict):
        raise ValueError(f"message {number} is {quoted(item)}, not an object with role and content")
    message = {key: _decoded(number, value) for key, value in item.items() if value is not None}
    role = message.get("role")
    if role not in ROLES:
        raise ValueError(f"message {number} has role {quoted(role)}; known roles: {', '.join(ROLES)}")
    if "content" not in message and "tool_calls" not in message:
        raise ValueError(f"message {number} has no content")
    message["content"] = _to_text(number, message.get("content", ""))
    return message


def _decoded(number: int, value: Any) -> Any:
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise ValueError(f"message {number} is not UTF-8") from error


def _to_text(number: int, content: Any) -> str:
    """Content as text; a list of text parts is joined, as chat APIs do."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    if all(isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts):
        return "".join(part["text"] for part in parts)
    raise ValueError(f"message {number} has content that is not text")
