"""Arrow types from schemas, and texts as their values."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from blendserve_core.structured.formats import ResponseFormat
from blendserve_core.structured.parsed import parse_texts, parsed_shape

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "value": INTEGER}}


def shape_of(*schemas: object):
    return parsed_shape([ResponseFormat("json_schema", json.dumps(schema)) for schema in schemas])


def list_of(data_type: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", data_type))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (STRING, pa.string()),
        (INTEGER, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": "boolean"}, pa.bool_()),
        ({"type": ["integer", "null"]}, pa.int64()),
        ({"type": ["integer", "string"]}, pa.string()),
        ({"enum": ["a", "b", None]}, pa.string()),
        ({"enum": [1, 2]}, pa.int64()),
        ({"enum": [1, 2.5]}, pa.float64()),
        ({"const": True}, pa.bool_()),
        ({"anyOf": [INTEGER, {"type": "null"}]}, pa.int64()),
        ({"anyOf": [INTEGER, STRING]}, pa.string()),
        ({"type": "array", "items": INTEGER}, list_of(pa.int64())),
        ({"type": "array"}, list_of(pa.string())),
        ({"type": "object"}, pa.string()),
        (
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": INTEGER}},
            pa.struct([("a", pa.int64())]),
        ),
        (
            {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
            pa.struct([("next", pa.string()), ("value", pa.int64())]),
        ),
        (True, pa.string()),
    ],
    ids=lambda value: str(value)[:50],
)
def test_the_type_of_the_column_is_the_shape_of_the_schema(schema: object, expected: pa.DataType) -> None:
    shape = shape_of(schema)
    assert shape is not None
    assert shape.data_type == expected


def test_texts_become_values_and_what_is_none_becomes_null() -> None:
    shape = shape_of({"type": "object", "properties": {"name": STRING, "ages": {"type": "array", "items": INTEGER}, "any": {}}})
    texts = ['{"name": "Ü", "ages": [1, 2], "any": {"x": [null]}}', '{"ages": []}', '{"name": "cut', "3", None, '{"name": 3}']
    assert shape is not None
    assert parse_texts(texts, shape).to_pylist() == [
        {"name": "Ü", "ages": [1, 2], "any": '{"x": [null]}'},
        {"name": None, "ages": [], "any": None},
        None,
        None,
        None,
        None,
    ]


def test_numbers_that_no_column_holds_become_null() -> None:
    integers, numbers = shape_of(INTEGER), shape_of({"type": "number"})
    assert integers is not None
    assert numbers is not None
    assert parse_texts([str(2**63 - 1), str(2**63), "true"], integers).to_pylist() == [2**63 - 1, None, None]
    assert parse_texts(["3", "1e999"], numbers).to_pylist() == [3.0, None]


def test_different_schemas_give_json_text() -> None:
    shape = shape_of(INTEGER, STRING)
    assert shape is not None
    assert parse_texts(["3", '"a"', "{", '{"a": 1}'], shape).to_pylist() == ["3", '"a"', None, '{"a": 1}']


def test_without_a_json_format_there_is_no_column() -> None:
    assert parsed_shape([ResponseFormat("regex", "a")]) is None
    assert parsed_shape([]) is None


def test_any_object_is_json_text() -> None:
    shape = parsed_shape([ResponseFormat("json_object")])
    assert shape is not None
    assert parse_texts(['{"a": 1}', "{"], shape).to_pylist() == ['{"a": 1}', None]
