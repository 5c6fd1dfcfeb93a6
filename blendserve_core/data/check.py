"""What can be said of a job's input from its columns alone, before a model is loaded or a row is read."""

from __future__ import annotations

import pyarrow as pa

from blendserve_core.data.columns import Columns, resolve_columns
from blendserve_core.data.length_hints import check_group_column
from blendserve_core.data.output_schema import output_schema
from schemas.parameters import JobParameters


def check_columns(schema: pa.Schema, parameters: JobParameters) -> Columns:
    """Find the columns of a job, as :func:`resolve_columns` does, and check that nothing of the output collides with them.

    Raises ValueError naming the input, and the columns.
    """
    try:
        columns = resolve_columns(schema, parameters.columns)
        check_group_column(schema, parameters.group_column)
        parsed_type = pa.string() if may_be_structured(columns, parameters) else None
        output_schema(schema, has_request_id=has_request_id(schema, columns), wants_logprobs=True, parsed_type=parsed_type)
    except ValueError as error:
        raise ValueError(f"{parameters.requests}: {error}") from error
    return columns


def has_request_id(schema: pa.Schema, columns: Columns) -> bool:
    """Whether the input brings ids of its own, so that the output adds none."""
    return columns.request_id is not None or "request_id" in schema.names


def may_be_structured(columns: Columns, parameters: JobParameters) -> bool:
    return "response_format" in columns.sampling or parameters.sampling.response_format is not None
