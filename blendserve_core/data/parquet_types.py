"""What becomes of an Arrow schema in a Parquet file."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq


def as_parquet_stores(schema: pa.Schema) -> pa.Schema:
    """The schema a Parquet file gives back for this one: Parquet has no timestamps in seconds, for example.

    Raises ValueError naming the column whose type it cannot hold at all.
    """
    plain = pa.schema(list(schema))
    for field in plain:
        try:
            pq.write_table(pa.schema([field]).empty_table(), io.BytesIO())
        except pa.ArrowException as error:
            raise ValueError(f"column {field.name!r}: Parquet cannot hold its type {field.type}. Drop the column.") from error
    stored = io.BytesIO()
    pq.write_table(plain.empty_table(), stored, use_compliant_nested_type=False)
    return pq.read_schema(stored).remove_metadata()
