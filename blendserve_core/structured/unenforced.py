"""Parts of JSON Schema and of regular expressions that the compiler reads past: a format with one of them is refused.

Found by giving xgrammar 0.2 schemas and texts that break them. ``oneOf`` is the exception: it is read as ``anyOf``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from blendserve_core.structured.formats import UnsupportedFormat

Schema = Mapping[str, Any]

NEVER = (
    "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains", "minContains",
    "maxContains", "additionalItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
BY_TYPE = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "unevaluatedProperties",
    ),
}  # fmt: skip
CONSTRAINTS = {keyword for keywords in BY_TYPE.values() for keyword in keywords}
# One of these decides alone; what stands beside it is not looked at.
SOLE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
ENFORCED_STRING_FORMATS = (
    "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uri-reference", "uri-template",
    "uuid", "json-pointer", "relative-json-pointer",
)  # fmt: skip
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
# Subschemas under a name of the user's own, in a list, and alone.
NAMED, LISTED = ("properties", "patternProperties", "$defs", "definitions"), ("anyOf", "oneOf", "allOf", "prefixItems")
ALONE = ("items", "additionalProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems")
UNREAD_REGEX = re.compile(r"\(\?[=!]|\\[AZzhG]|\[\[:|(?<!\\)\$(?!$|[)|])|(?<=[^\\(|\[])\^")
# Their raw characters would end up in a JSON string, which must escape them.
ESCAPED_IN_JSON = re.compile(r"\"|\\[\\ntrfvxu0c]")


def check_schema(schema: Any, path: str = "schema") -> None:
    """Raises UnsupportedFormat naming the place of the first keyword that would not be kept."""
    if not isinstance(schema, Mapping):
        return
    for problem in _problems(schema):
        raise UnsupportedFormat(f"{path}: {problem}")
    for name, subschema in _subschemas(schema):
        check_schema(subschema, f"{path}.{name}")


def check_regex(pattern: str) -> None:
    """Raises UnsupportedFormat for look-ahead, and for anchors other than ^ at the begin and $ at the end."""
    if found := UNREAD_REGEX.search(pattern):
        raise UnsupportedFormat(f"regex: {found.group()!r} is not supported")


def _problems(schema: Schema) -> Iterator[str]:
    for keyword in NEVER:
        if keyword in schema:
            yield f"{keyword} is not supported"
    if schema.get("uniqueItems"):
        yield "uniqueItems is not supported"
    yield from _sole_problems(schema)
    yield from _type_problems(schema)
    yield from _number_problems(schema)
    yield from _string_problems(schema)
    yield from _object_problems(schema)


def _sole_problems(schema: Schema) -> Iterator[str]:
    present = [keyword for keyword in SOLE if keyword in schema]
    if present and (beside := [*present[1:], *(CONSTRAINTS & schema.keys())]):
        yield f"{present[0]} cannot stand beside {beside[0]}"
    if present and "type" in schema and not _is_implied(schema, present[0]):
        yield f"{present[0]} with values outside of its type is not supported"
    if not re.match("#(/|$)", str(schema.get("$ref", "#"))):
        yield f"$ref is {schema['$ref']!r}; only # and #/... are followed"
    if len(schema.get("allOf", [])) > 1:
        yield "allOf of more than one schema is not supported"


def _is_implied(schema: Schema, keyword: str) -> bool:
    """Whether the type that stands beside a keyword says nothing that the keyword does not."""
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if keyword in ("const", "enum"):
        values = schema["enum"] if keyword == "enum" else [schema["const"]]
        return isinstance(values, list) and all(_type_of(value) & set(types) for value in values)
    branches = schema[keyword]
    return isinstance(branches, list) and all(isinstance(b, Mapping) and b.get("type") in types for b in branches)


def _type_of(value: Any) -> set[str]:
    if isinstance(value, bool) or value is None:
        return {"boolean" if isinstance(value, bool) else "null"}
    if isinstance(value, int | float):
        return {"number", "integer"} if value == int(value) else {"number"}
    return {"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"}


def _type_problems(schema: Schema) -> Iterator[str]:
    stated = schema.get("type", [])
    types = stated if isinstance(stated, list) else [stated]
    if "type" in schema and not (types and all(each in TYPES for each in types)):
        yield f"type is {stated!r}; it must be one or more of {', '.join(TYPES)}"
    if "type" not in schema:
        first = next((keyword for keyword in schema if keyword in CONSTRAINTS), None)
        if first is not None:
            yield f"{first} needs a type beside it"


def _number_problems(schema: Schema) -> Iterator[str]:
    if "multipleOf" not in schema:
        return
    if schema.get("type") != "integer" or not isinstance(schema["multipleOf"], int):
        yield "multipleOf is supported for integers only"
    if any(bound in schema for bound in BY_TYPE["number"] if bound != "multipleOf"):
        yield "multipleOf cannot stand beside a bound"


def _string_problems(schema: Schema) -> Iterator[str]:
    is_format = schema.get("format") in ENFORCED_STRING_FORMATS and "string" in str(schema.get("type"))
    kinds = ["format"] * is_format + ["pattern"] * ("pattern" in schema)
    kinds += ["minLength or maxLength"] * ("minLength" in schema or "maxLength" in schema)
    if len(kinds) > 1:
        yield f"{kinds[0]} cannot stand beside {kinds[1]}"
    for pattern in [schema.get("pattern"), *_names(schema, "patternProperties")]:
        if isinstance(pattern, str) and (found := UNREAD_REGEX.search(pattern) or ESCAPED_IN_JSON.search(pattern)):
            yield f"pattern {pattern!r}: {found.group()!r} is not supported"


def _object_problems(schema: Schema) -> Iterator[str]:
    properties = set(_names(schema, "properties"))
    for name in schema.get("required", []):
        if name not in properties:
            yield f"required names {name!r}, which is not among the properties"
    for other in ("patternProperties", "propertyNames"):
        if properties and other in schema:
            yield f"{other} cannot stand beside properties"


def _names(schema: Schema, keyword: str) -> list[str]:
    return list(schema[keyword]) if isinstance(schema.get(keyword), Mapping) else []


def _subschemas(schema: Schema) -> Iterator[tuple[str, Any]]:
    for keyword in NAMED:
        for name in _names(schema, keyword):
            yield f"{keyword}.{name}", schema[keyword][name]
    for keyword in LISTED:
        if isinstance(schema.get(keyword), list):
            yield from ((f"{keyword}[{i}]", item) for i, item in enumerate(schema[keyword]))
    for keyword in ALONE:
        if keyword in schema:
            yield keyword, schema[keyword]
