"""The forms of ``response_format``, from structs and from JSON text."""

from __future__ import annotations

import json

import pytest

from blendserve_core.structured.formats import BadFormat, ResponseFormat, read_format

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
FORMS = [
    ({"type": "text"}, None),
    ({"type": "json_object"}, ResponseFormat("json_object")),
    ({"type": "regex", "regex": "[ab]+"}, ResponseFormat("regex", "[ab]+")),
    ({"type": "grammar", "grammar": 'root ::= "a"'}, ResponseFormat("grammar", 'root ::= "a"')),
    ({"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}, "schema"),
    ({"type": "json_schema", "json_schema": {"schema": json.dumps(SCHEMA, indent=4)}}, "schema"),
]


@pytest.mark.parametrize(("value", "expected"), FORMS, ids=lambda value: str(value)[:40])
def test_a_format_is_read_alike_from_a_struct_and_from_its_json_text(value: dict, expected: object) -> None:
    expected = ResponseFormat("json_schema", json.dumps(SCHEMA)) if expected == "schema" else expected
    assert read_format(value) == read_format(json.dumps(value)) == expected


def test_properties_stay_in_the_order_of_the_schema() -> None:
    found = read_format({"type": "json_schema", "json_schema": {"schema": SCHEMA}})
    assert found is not None
    assert list(json.loads(found.text)["properties"]) == ["b", "a"]


def test_nulls_that_a_struct_has_for_other_rows_are_no_part_of_a_schema() -> None:
    value = {"type": "json_schema", "regex": None, "json_schema": {"schema": {"type": "integer", "items": None}}}
    assert read_format(value) == ResponseFormat("json_schema", '{"type": "integer"}')


def test_nulls_in_json_text_are_kept() -> None:
    value = '{"type": "json_schema", "json_schema": {"schema": {"const": null}}}'
    assert read_format(value) == ResponseFormat("json_schema", '{"const": null}')


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "response_format is text, but not JSON"),
        ("[1]", "must have a type, one of text, json_schema"),
        ({}, "must have a type"),
        ({"type": "xml"}, "must have a type"),
        ({"type": ["regex"]}, "must have a type"),
        ({"type": "regex"}, "regex is None; it must be text"),
        ({"type": "regex", "regex": ""}, "regex is ''; it must be text"),
        ({"type": "grammar", "grammar": 3}, "grammar is 3; it must be text"),
        ({"type": "json_schema"}, "json_schema.schema is None; it must be a JSON schema"),
        ({"type": "json_schema", "json_schema": {"schema": [1]}}, "must be a JSON schema"),
        ({"type": "json_schema", "json_schema": {"schema": "{"}}, "json_schema.schema is text, but not JSON"),
    ],
)
def test_what_is_no_format_is_refused_in_words(value: object, message: str) -> None:
    with pytest.raises(BadFormat, match=message):
        read_format(value)  # type: ignore[arg-type]
