"""What a user knows of output lengths: a column whose values part rows of different lengths, and lengths themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from blendserve_core.data.arrays import plain
from blendserve_core.data.columns import EXPECTED_OUTPUT_TOKENS
from blendserve_core.data.staged_files import input_parts
from blendserve_core.requests import RequestTable
from schemas.parameters import JobParameters

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LengthHints:
    """R = requests.

    group                  [R] int32, equal where the user's column has equal values, null among them; None without a column
    expected_output_tokens [R] int32, 0 where unknown
    """

    group: NDArray[np.int32] | None
    expected_output_tokens: NDArray[np.int32]


def check_group_column(schema: pa.Schema, name: str | None) -> None:
    """Raises ValueError where the column that is to group rows is not in the input."""
    if name is not None and name not in schema.names:
        raise ValueError(f"group_column: no column {name!r}. The input has: {', '.join(schema.names)}.")


def read_length_hints(staged: Path, requests: RequestTable, parameters: JobParameters) -> LengthHints:
    """Read the hints of all requests from the staged rows, whose values staging has checked.

    They are read when a plan is made, not staged with the requests: a job that was stopped may go on with another group column.
    """
    rows = ds.dataset([str(part) for part in input_parts(staged)], format="parquet")
    group = None
    if parameters.group_column is not None:
        group = _group_ids(_column(rows, parameters.group_column))[requests.row]
    expected = np.zeros(requests.num_requests, dtype=np.int32)
    name = parameters.columns.get(EXPECTED_OUTPUT_TOKENS, EXPECTED_OUTPUT_TOKENS)
    if name in rows.schema.names:
        expected = _expected_tokens(_column(rows, name), requests.row)
    return LengthHints(group, expected)


def _column(rows: ds.Dataset, name: str) -> pa.Array:
    return plain(rows.to_table(columns={name: ds.field(name)}).column(0).combine_chunks())


def _group_ids(column: pa.Array) -> NDArray[np.int32]:
    """A number per distinct value, null included."""
    try:
        encoded = pc.call_function("dictionary_encode", [column], pc.DictionaryEncodeOptions("encode"))
    except pa.ArrowNotImplementedError:  # nested values
        encoded = pa.array([repr(value) for value in column.to_pylist()], pa.large_string()).dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int32)


def _expected_tokens(column: pa.Array, row: NDArray[np.int64]) -> NDArray[np.int32]:
    tokens = column.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)[row]
    return np.rint(np.minimum(tokens, _INT32_MAX)).astype(np.int32)
