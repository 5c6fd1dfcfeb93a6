"""Arrow's views of strings and bytes, which its kernels and its Parquet writer handle only in part: rows travel without them.

In a Parquet file both kinds look the same but for the Arrow schema kept in its metadata, so declaring the views there is enough
to give them back to whoever reads the file.
"""

from __future__ import annotations

import base64

import pyarrow as pa
import pyarrow.types as pat

from blendserve_core.data.arrow_types import fields_of

ARROW_SCHEMA_KEY = "ARROW:schema"


def without_views(schema: pa.Schema) -> pa.Schema:
    """The same schema with strings and bytes in place of views of them."""
    return pa.schema([_plain_field(field) for field in schema])


def declaration(schema: pa.Schema) -> dict[str, str]:
    """File metadata that makes a Parquet file read back in ``schema``."""
    return {ARROW_SCHEMA_KEY: base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")}


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))


def _plain_type(data_type: pa.DataType) -> pa.DataType:
    if pat.is_string_view(data_type):
        return pa.string()
    if pat.is_binary_view(data_type):
        return pa.binary()
    if isinstance(data_type, pa.StructType):
        return pa.struct([_plain_field(field) for field in fields_of(data_type)])
    if isinstance(data_type, pa.MapType):
        return pa.map_(_plain_field(data_type.key_field), _plain_field(data_type.item_field), data_type.keys_sorted)
    if isinstance(data_type, pa.FixedSizeListType):
        return pa.list_(_plain_field(data_type.value_field), data_type.list_size)
    if isinstance(data_type, pa.ListType):
        return pa.list_(_plain_field(data_type.value_field))
    if isinstance(data_type, pa.LargeListType):
        return pa.large_list(_plain_field(data_type.value_field))
    return data_type
