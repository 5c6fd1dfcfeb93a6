"""The ``response_format`` of single rows, from structs or JSON text; what is none is an error of its row."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from blendserve_core.data.arrays import texts, values
from blendserve_core.data.row_error import RowError
from blendserve_core.structured.formats import BadFormat, ResponseFormat, read_format


def read_formats(
    column: pa.Array | None, num_rows: int, default: str | None, errors: dict[int, RowError]
) -> list[ResponseFormat | None]:
    """The format of every row, None where its text is free; ``default`` is the job's, as JSON text. Adds to ``errors``."""
    shared = None if default is None else read_format(default)
    if column is None or pat.is_null(column.type):
        return [shared] * num_rows
    found, is_broken = values(column) if pat.is_struct(column.type) else texts(column)
    known: dict[str, ResponseFormat | BadFormat | None] = {}
    formats: list[ResponseFormat | None] = []
    for row, value in enumerate(found):
        result = shared if value is None else _read_once(value, known)
        if is_broken[row]:
            result = BadFormat("response_format is not UTF-8")
        if isinstance(result, BadFormat):
            errors.setdefault(row, RowError("invalid_response_format", str(result)))
        formats.append(None if isinstance(result, BadFormat) else result)
    return formats


def _read_once(value: Any, known: dict[str, ResponseFormat | BadFormat | None]) -> ResponseFormat | BadFormat | None:
    """Rows mostly repeat the formats of others."""
    key = value if isinstance(value, str) else json.dumps(value, default=repr)
    if key not in known:
        try:
            known[key] = read_format(value)
        except BadFormat as error:
            known[key] = error
    return known[key]
