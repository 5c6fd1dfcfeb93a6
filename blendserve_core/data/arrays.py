"""Columns of a batch as text, and as flat arrays, whichever of Arrow's types they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from blendserve_core.data.arrow_types import is_bytes


def plain(column: pa.Array) -> pa.Array:
    """A column without dictionary encoding, and without an extension type such as JSON's."""
    if isinstance(column, pa.ExtensionArray):
        return plain(column.storage)
    return column.cast(column.type.value_type) if pat.is_dictionary(column.type) else column


def values(column: pa.Array) -> tuple[list[Any], NDArray[np.bool_]]:
    """Python value of every row, and which rows hold text that is no UTF-8 (no reader checks that); those are None too."""
    is_broken = np.zeros(len(column), dtype=np.bool_)
    try:
        return column.to_pylist(), is_broken
    except UnicodeDecodeError:
        pass
    found: list[Any] = [None] * len(column)
    for row in range(len(column)):
        try:
            found[row] = column[row].as_py()
        except UnicodeDecodeError:
            is_broken[row] = True
    return found, is_broken


def texts(column: pa.Array) -> tuple[list[str | None], NDArray[np.bool_]]:
    """Text of every row from strings or bytes, and which rows are no UTF-8; those are None too."""
    found, is_broken = values(column)
    if is_bytes(column.type):
        for row, value in enumerate(found):
            try:
                found[row] = value and value.decode("utf-8")
            except UnicodeDecodeError:
                found[row], is_broken[row] = None, True
    return found, is_broken


def ragged(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Lists of integers: [rows] lengths, 0 for null; one flat array; [rows] whether a list holds a null."""
    lists = _large_lists(column)
    lens = pc.call_function("list_value_length", [lists]).fill_null(0).to_numpy(zero_copy_only=False)
    flat = lists.flatten().cast(pa.int64(), safe=False)  # what is too large for int64 turns negative, and so stays invalid
    has_null = np.zeros(len(lens), dtype=np.bool_)
    has_null[rows_of(lens, null_mask(flat))] = True
    return lens, flat.fill_null(0).to_numpy(zero_copy_only=False), has_null


def _large_lists(column: pa.Array) -> pa.Array:
    list_type = pa.large_list(column.type.value_type)
    if pat.is_list_view(column.type) or pat.is_large_list_view(column.type):
        return pa.array(column.to_pylist(), list_type)  # casting list views that hold nulls gives broken offsets
    return column.cast(list_type)


def null_mask(column: pa.Array) -> NDArray[np.bool_]:
    return column.is_null().to_numpy(zero_copy_only=False)


def rows_of(lens: NDArray[np.int64], is_wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Rows that own at least one of the wanted flat positions."""
    return np.unique(np.repeat(np.arange(len(lens)), lens)[is_wanted])


def to_flat(lists: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """[rows] lengths and one flat array."""
    lens = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    flat: Any = (token_id for token_ids in lists for token_id in token_ids)
    return lens, np.fromiter(flat, dtype=np.int32, count=int(lens.sum()))
