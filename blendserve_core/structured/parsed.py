"""The ``parsed`` column: texts as the values that their format promises, in an Arrow type that comes from the schema.

Where all formats of a job are one schema, its shape is the column's type; JSON text stands where it has no fixed shape. Where
they differ, the whole column is JSON text. A text that is no value of its format, such as one cut at ``max_tokens``, is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from blendserve_core.data.json_text import parse_json
from blendserve_core.structured.formats import ResponseFormat

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """An Arrow type, and how a JSON value other than null becomes one of its values; ValueError for what cannot."""

    data_type: pa.DataType
    convert: Callable[[Any], Any]


def parsed_shape(formats: Iterable[ResponseFormat]) -> Shape | None:
    """Shape of the column for the distinct formats of a job; None where none of them is JSON, and there is no column."""
    schemas = [response_format.text for response_format in formats if response_format.is_json]
    if not schemas:
        return None
    schema = json.loads(schemas[0]) if len(schemas) == 1 and schemas[0] else {}
    return _shape(schema, schema, ())


def parse_texts(texts: Sequence[str | None], shape: Shape) -> pa.Array:
    """The column for some texts, null where one is null or no value of the shape."""
    return pa.array([_parse(text, shape) for text in texts], shape.data_type)


def _parse(text: str | None, shape: Shape) -> Any:
    try:
        value = None if text is None else parse_json(text)
        return None if value is None else shape.convert(value)
    except ValueError:
        return None


def _shape(schema: Any, root: Any, seen: tuple[str, ...]) -> Shape:
    """``seen`` are the references on the way here: a schema inside of itself has no fixed shape."""
    if not isinstance(schema, Mapping):
        return JSON_TEXT
    if "$ref" in schema:
        return JSON_TEXT if schema["$ref"] in seen else _shape(_target(schema["$ref"], root), root, (*seen, schema["$ref"]))
    if "enum" in schema or "const" in schema:
        return _common([_shape_of_value(value) for value in schema.get("enum", [schema.get("const")]) if value is not None])
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return _common([_shape(branch, root, seen) for branch in schema[keyword] if branch != {"type": "null"}])
    types = schema.get("type", [])
    types = [name for name in (types if isinstance(types, list) else [types]) if name != "null"]
    return _common([_shape_of_type(name, schema, root, seen) for name in types])


def _shape_of_type(name: str, schema: Schema, root: Any, seen: tuple[str, ...]) -> Shape:
    if name == "object" and schema.get("properties") and not schema.get("additionalProperties"):
        return _struct({key: _shape(item, root, seen) for key, item in schema["properties"].items()})
    if name == "array" and "prefixItems" not in schema:
        return _list(_shape(schema.get("items"), root, seen))
    return SCALARS.get(name, JSON_TEXT)


def _common(shapes: list[Shape]) -> Shape:
    """One shape for all: the same, or numbers; else JSON text."""
    if shapes and all(shape.data_type == shapes[0].data_type and shape is not JSON_TEXT for shape in shapes):
        return shapes[0]
    is_numbers = shapes and all(shape in (SCALARS["integer"], SCALARS["number"]) for shape in shapes)
    return SCALARS["number"] if is_numbers else JSON_TEXT


def _struct(fields: dict[str, Shape]) -> Shape:
    def convert(value: Any) -> dict[str, Any]:
        found = _only(value, dict)
        return {name: None if found.get(name) is None else shape.convert(found[name]) for name, shape in fields.items()}

    return Shape(pa.struct([(name, shape.data_type) for name, shape in fields.items()]), convert)


def _list(item: Shape) -> Shape:
    def convert(value: Any) -> list[Any]:
        return [None if element is None else item.convert(element) for element in _only(value, list)]

    return Shape(pa.list_(pa.field("element", item.data_type)), convert)


def _shape_of_value(value: Any) -> Shape:
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return SCALARS[names[type(value)]] if type(value) in names else JSON_TEXT


def _only(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError(f"{value!r} is no integer of 64 bits")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _target(reference: str, root: Any) -> Any:
    """What a ``#/...`` reference leads to."""
    target = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        target = target[int(name)] if isinstance(target, list) else target.get(name)
    return target


JSON_TEXT = Shape(pa.string(), _json_text)
SCALARS = {
    "string": Shape(pa.string(), lambda value: _only(value, str)),
    "integer": Shape(pa.int64(), _integer),
    "number": Shape(pa.float64(), _number),
    "boolean": Shape(pa.bool_(), lambda value: _only(value, bool)),
}
