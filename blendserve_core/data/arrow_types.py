"""Families of Arrow types: whichever of several a writer chose, the job reads them alike."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pat

ListLike: TypeAlias = pa.ListType | pa.LargeListType | pa.FixedSizeListType | pa.ListViewType | pa.LargeListViewType


def is_list(data_type: pa.DataType) -> bool:
    """Any list; maps are none."""
    return isinstance(data_type, ListLike)


def is_text(data_type: pa.DataType) -> bool:
    return pat.is_string(data_type) or pat.is_large_string(data_type) or pat.is_string_view(data_type)


def is_bytes(data_type: pa.DataType) -> bool:
    return pat.is_binary(data_type) or pat.is_large_binary(data_type) or pat.is_binary_view(data_type)


def is_string(data_type: pa.DataType) -> bool:
    """Text, or bytes that may hold it."""
    return is_text(data_type) or is_bytes(data_type)


def is_number(data_type: pa.DataType) -> bool:
    return pat.is_integer(data_type) or pat.is_floating(data_type)


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """A type without dictionary encoding and extension, as what it stores."""
    if isinstance(data_type, pa.BaseExtensionType):
        return plain_type(data_type.storage_type)
    return data_type.value_type if isinstance(data_type, pa.DictionaryType) else data_type


def fields_of(struct: pa.StructType) -> list[pa.Field]:
    return [struct.field(i) for i in range(struct.num_fields)]
