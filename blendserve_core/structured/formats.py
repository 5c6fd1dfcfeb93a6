"""How a row asks for structured output: OpenAI's ``response_format``, with regular expressions and grammars beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from reprlib import repr as short
from typing import Any, Literal, NamedTuple, cast, get_args

from blendserve_core.data.json_text import parse_json

FormatKind = Literal["json_schema", "json_object", "regex", "grammar"]
KINDS: tuple[FormatKind, ...] = get_args(FormatKind)


class ResponseFormat(NamedTuple):
    """What a text must look like. ``text`` is a schema as JSON text, a regular expression or an EBNF grammar; else empty."""

    kind: FormatKind
    text: str = ""

    @property
    def is_json(self) -> bool:
        return self.kind in ("json_schema", "json_object")


class BadFormat(ValueError):
    """It is no response format."""


class UnsupportedFormat(ValueError):
    """It is one, but what it asks for could not be promised."""


def read_format(value: Mapping[str, Any] | str) -> ResponseFormat | None:
    """A ``response_format`` from a struct, or from its JSON text; None where the text is free. Raises BadFormat.

    The forms are {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": ...}},
    {"type": "regex", "regex": ...} and {"type": "grammar", "grammar": ...}. A schema may be JSON text itself.
    """
    found = _parsed(value, "response_format") if isinstance(value, str) else _without_nulls(value)
    kind = found.get("type") if isinstance(found, Mapping) else None
    if kind == "text":
        return None
    if kind not in KINDS:
        raise BadFormat(f"response_format is {short(found)}; it must have a type, one of text, {', '.join(KINDS)}")
    kind = cast(FormatKind, kind)
    if kind == "json_object":
        return ResponseFormat(kind)
    return ResponseFormat(kind, _schema_text(found) if kind == "json_schema" else _nonempty_text(found, kind))


def _nonempty_text(found: Mapping[str, Any], name: str) -> str:
    text = found.get(name)
    if not isinstance(text, str) or not text:
        raise BadFormat(f"response_format: {name} is {short(text)}; it must be text that is not empty")
    return text


def _schema_text(found: Mapping[str, Any]) -> str:
    """The schema in one spelling. The order of its properties stays: it is the order in which they are written."""
    wrapper = found.get("json_schema")
    schema = wrapper.get("schema") if isinstance(wrapper, Mapping) else None
    if isinstance(schema, str):
        schema = _parsed(schema, "json_schema.schema")
    if not isinstance(schema, Mapping | bool):
        raise BadFormat(f"response_format: json_schema.schema is {short(schema)}; it must be a JSON schema")
    return json.dumps(schema, ensure_ascii=False)


def _parsed(text: str, name: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise BadFormat(f"{name} is text, but not JSON: {error}") from error


def _without_nulls(value: Any) -> Any:
    """Fields that a struct has for the sake of other rows are null in this one."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
