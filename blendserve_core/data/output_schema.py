"""The schema of the published generations, known before the first row is read."""

from __future__ import annotations

import pyarrow as pa

from schemas.arrow import ADDED_COLUMNS, GENERATION_SCHEMA

LOGPROBS_BESIDE_INPUT = "output_logprobs"


PARSED = "parsed"


def output_schema(
    input_schema: pa.Schema, *, has_request_id: bool, wants_logprobs: bool, parsed_type: pa.DataType | None = None
) -> pa.Schema:
    """The input's own fields, then the added ones.

    ``request_id`` is added where the input has none, ``logprobs`` where asked for; beside an input column ``logprobs`` (a
    sampling parameter of the rows) it is called ``output_logprobs``. With a ``parsed_type`` the values of structured texts are
    added. Raises ValueError where other names collide.
    """
    names = added_names(input_schema, has_request_id=has_request_id, wants_logprobs=wants_logprobs)
    if parsed_type is not None:
        names |= {PARSED: PARSED}
    taken = [name for name in names.values() if name in input_schema.names]
    if taken:
        raise ValueError(
            f"the input has columns that the output adds: {', '.join(taken)}. Rename or drop them in the input; "
            "nothing of it is ever overwritten."
        )
    return pa.schema([*input_schema, *(_added_field(column, name, parsed_type) for column, name in names.items())])


def added_names(input_schema: pa.Schema, *, has_request_id: bool, wants_logprobs: bool) -> dict[str, str]:
    """What each added column is called in the output."""
    names = {column: column for column in ADDED_COLUMNS}
    if has_request_id:
        del names["request_id"]
    if not wants_logprobs:
        del names["logprobs"]
    elif "logprobs" in input_schema.names:
        names["logprobs"] = LOGPROBS_BESIDE_INPUT
    return names


def _added_field(column: str, name: str, parsed_type: pa.DataType | None) -> pa.Field:
    if column == PARSED:
        return pa.field(name, parsed_type)
    if column == "request_id":
        return pa.field(name, pa.string(), nullable=False)
    return GENERATION_SCHEMA.field(column).with_name(name)
