"""What is compiled allows nothing that breaks its schema, and what could not be promised is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import xgrammar

from blendserve_core.structured.compile import FormatCompiler
from blendserve_core.structured.formats import BadFormat, ResponseFormat, UnsupportedFormat

INTEGER, STRING = {"type": "integer"}, {"type": "string"}
A = {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}
VALUES: list[Any] = [
    {}, {"a": 1}, {"a": "x"}, {"a": 1, "b": 2}, {"b": 1}, {"a": 9}, [], [1], [1, 1], [1, 2], ["a"], [1, "a"], [1, 2, 3, 4],
    0, 1, 7, 14, 15, -1, 0.5, 1.5, 99, "", "a", "ab", "abcd", "b", "2020-01-01", "é", 'a"b', "a\\b", "a\nb", None, True,
]  # fmt: skip
# Texts that are no JSON, but might look like it to a careless grammar.
NO_JSON = ['"a\tb"', '"\x01"', '"\x1f"', '"', '"""', '"\\"', "01", "NaN", "{'a': 1}", '{"a": 1,}', "1 1", "\n1", ""]

KEPT = [
    INTEGER, STRING, {}, True, A,
    {"type": "object"},
    {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "minProperties": 1, "maxProperties": 1},
    {"type": "object", "additionalProperties": INTEGER},
    {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": True},
    {"type": "object", "patternProperties": {"^a$": INTEGER}},
    {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 3},
    {"type": "array", "prefixItems": [INTEGER, STRING]},
    {"type": "integer", "minimum": 1, "exclusiveMaximum": 15},
    {"type": "number", "minimum": 0.5, "maximum": 14},
    {"type": "integer", "multipleOf": 7},
    {"type": "string", "minLength": 1, "maxLength": 3},
    {"type": "string", "pattern": "^[ab]+$"},
    {"type": "string", "pattern": "^.[^x]\\S?$"},
    {"type": "string", "format": "date"},
    {"type": ["string", "null"], "maxLength": 1},
    {"enum": [1, "a", None, {"a": 1}]},
    {"type": "string", "enum": ["a", 'a"b', "a\nb"]},
    {"const": [1, 2]},
    {"anyOf": [A, {"type": "array", "items": STRING}]},
    {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": A}},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
]  # fmt: skip

REFUSED = [
    ({"not": STRING}, "not is not supported"),
    ({"if": STRING, "then": {"type": "string", "minLength": 1}}, "if is not supported"),
    ({"allOf": [A, {"type": "object"}]}, "allOf of more than one schema"),
    ({"type": "array", "items": INTEGER, "uniqueItems": True}, "uniqueItems is not supported"),
    ({"type": "array", "contains": INTEGER}, "contains is not supported"),
    ({"type": "object", "properties": {"x": {"type": "array", "contains": {}}}}, "schema.properties.x: contains"),
    ({"type": "object", "properties": {"a": {}}, "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, "required names 'b'"),
    ({"type": "object", "properties": {"a": {}}, "propertyNames": {"enum": ["a"]}}, "propertyNames cannot stand beside"),
    ({"type": "number", "multipleOf": 0.5}, "multipleOf is supported for integers only"),
    ({"type": "integer", "multipleOf": 7, "minimum": 9}, "multipleOf cannot stand beside a bound"),
    ({"type": "string", "pattern": "^a+$", "maxLength": 3}, "pattern cannot stand beside minLength or maxLength"),
    ({"type": "string", "format": "date", "maxLength": 3}, "format cannot stand beside"),
    ({"type": "string", "pattern": "\\n"}, "is not supported"),
    ({"type": "string", "pattern": '"'}, "is not supported"),
    ({"type": "string", "pattern": "(?=a)b"}, "is not supported"),
    ({"minimum": 3}, "minimum needs a type beside it"),
    ({"type": "integer", "enum": ["a"]}, "enum with values outside of its type"),
    ({"anyOf": [INTEGER, STRING], "maximum": 3}, "anyOf cannot stand beside maximum"),
    ({"$ref": "#/$defs/a", "$defs": {"a": INTEGER}, "maximum": 3}, "$ref cannot stand beside maximum"),
    ({"$ref": "http://example.com/schema"}, "only # and #/... are followed"),
    ({"type": "text"}, "type is 'text'; it must be one or more of"),
]


@pytest.fixture(scope="module")
def compiler(tiny_model_folder: Path) -> FormatCompiler:
    return FormatCompiler.load(tiny_model_folder, num_threads=1)


def allows(grammar: xgrammar.CompiledGrammar, text: str) -> bool:
    matcher = xgrammar.GrammarMatcher(grammar)
    return matcher.accept_string(text) and matcher.is_completed()


def is_valid(text: str, schema: Any) -> bool:
    try:
        return jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    except ValueError:
        return False


@pytest.mark.parametrize("schema", KEPT, ids=lambda schema: json.dumps(schema)[:60])
def test_every_text_that_a_schema_allows_is_valid_under_it(compiler: FormatCompiler, schema: Any) -> None:
    grammar = compiler.compile(ResponseFormat("json_schema", json.dumps(schema)))
    texts = [*map(json.dumps, VALUES), *(json.dumps(value, separators=(",", ":")) for value in VALUES), *NO_JSON]
    allowed = [text for text in texts if allows(grammar, text)]
    assert allowed
    assert [text for text in allowed if not is_valid(text, schema)] == []


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_would_not_be_kept_is_refused_in_words(compiler: FormatCompiler, schema: Any, message: str) -> None:
    with pytest.raises(UnsupportedFormat, match=re.escape(message)):
        compiler.compile(ResponseFormat("json_schema", json.dumps(schema)))


@pytest.mark.parametrize(
    "response_format",
    [
        ResponseFormat("json_schema", '{"type": "string", "minLength": "x"}'),
        ResponseFormat("json_schema", '{"type": "object", "properties": [1]}'),
        ResponseFormat("json_schema", '{"$ref": "#/$defs/none"}'),
        ResponseFormat("json_schema", "false"),
        ResponseFormat("regex", "[0-9"),
        ResponseFormat("grammar", 'root ::= "a" | b'),
        ResponseFormat("grammar", "nonsense"),
    ],
    ids=str,
)
def test_what_is_no_schema_regex_or_grammar_is_refused(compiler: FormatCompiler, response_format: ResponseFormat) -> None:
    with pytest.raises(BadFormat, match=f"^{response_format.kind}: [^\\[]"):
        compiler.compile(response_format)


@pytest.mark.parametrize("pattern", ["a$b", "a^b", "(?=a)b", "(?!a)b", "(?<=a)b", r"\bb", r"\Aab", "(a)\\1", "[[:alpha:]]"])
def test_parts_of_a_regex_that_would_be_read_past_are_refused(compiler: FormatCompiler, pattern: str) -> None:
    with pytest.raises(UnsupportedFormat):
        compiler.compile(ResponseFormat("regex", pattern))


@pytest.mark.parametrize("pattern", ["a.b", "^ab$", r"\$[0-9]+", "[.]x", r"a\.b", "(ab|c){2}", "[^a]", r"a\\.b", "^a|b$"])
def test_a_regex_allows_what_python_matches_as_a_whole(compiler: FormatCompiler, pattern: str) -> None:
    texts = ["a\nb", "axb", "ab", "$12", ".x", "a.b", "abc", "cc", "b", "a", "\n", "a\\xb"]
    grammar = compiler.compile(ResponseFormat("regex", pattern))
    assert [text for text in texts if allows(grammar, text)] == [text for text in texts if re.fullmatch(pattern, text)]


def test_white_space_has_an_end(compiler: FormatCompiler) -> None:
    grammar = compiler.compile(ResponseFormat("json_object"))
    assert allows(grammar, '{\n    "a": 1\n}')
    assert not allows(grammar, "{" + 21 * " " + '"a": 1}')


def test_special_tokens_are_never_allowed(compiler: FormatCompiler) -> None:
    matcher = xgrammar.GrammarMatcher(compiler.compile(ResponseFormat("regex", ".*")))
    bits = xgrammar.allocate_token_bitmask(1, compiler.vocab_size)
    matcher.fill_next_token_bitmask(bits)
    forbidden = [i for i in range(compiler.vocab_size) if not bits[0, i // 32] >> (i % 32) & 1]
    assert len(compiler.eos_token_ids) == 1
    assert compiler.eos_token_ids[0] not in forbidden
    assert max(forbidden) >= 256
