"""Outcomes that an earlier run published: rows that ask the same of the same model take them over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from numpy.typing import NDArray

from blendserve_core.data.batches import num_batch_rows
from blendserve_core.data.duplicates import with_columns
from blendserve_core.data.durable import written_whole
from blendserve_core.data.output_schema import LOGPROBS_BESIDE_INPUT
from blendserve_core.data.rolling import parquet_writer
from blendserve_core.data.unify import conform
from blendserve_core.requests import RequestTable
from schemas.arrow import GENERATION_SCHEMA


@dataclass(frozen=True, slots=True)
class EarlierOutput:
    """Files of published generations, in order, and the digest of each of their rows [num_rows, 2]."""

    parts: list[Path]
    digest: NDArray[np.uint64]
    keeps_errors: bool = True


def take_over(earlier: EarlierOutput, requests: RequestTable, digests: NDArray[np.uint64], folder: Path) -> NDArray[np.bool_]:
    """[R] which requests have an outcome in ``earlier``; those outcomes go into a part file in ``folder``.

    Requests whose outcome is a matter of luck may have equal digests: the first of them gets the first outcome, and so on.
    """
    earlier_row = _match(digests, _usable(earlier))
    is_reused = earlier_row >= 0
    request_of = np.full(len(earlier.digest), -1, dtype=np.int64)
    request_of[earlier_row[is_reused]] = np.flatnonzero(is_reused)
    folder.mkdir(exist_ok=True)
    with written_whole(folder / "part-000000.parquet") as path, parquet_writer(path, GENERATION_SCHEMA) as writer:
        for batch in _outcomes(earlier.parts, request_of, requests):
            writer.write_batch(batch)
    return is_reused


def _usable(earlier: EarlierOutput) -> NDArray[np.uint64]:
    """The digests, zero where there is nothing to take over."""
    if earlier.keeps_errors:
        return earlier.digest
    reasons = ds.dataset([str(part) for part in earlier.parts], format="parquet").to_table(columns=["finish_reason"])
    is_error = np.array(reasons.column(0).to_pylist(), dtype=np.str_) == "error"
    return np.where(is_error[:, None], np.uint64(0), earlier.digest)


def _match(digests: NDArray[np.uint64], earlier: NDArray[np.uint64]) -> NDArray[np.int64]:
    """[R] row of the earlier output with the same digest, the k-th of equal ones for the k-th; -1 where there is none."""
    found = _numbered(digests).join(
        _numbered(earlier).with_row_index("earlier_row").filter((pl.col("high") != 0) | (pl.col("low") != 0)),
        on=["high", "low", "occurrence"],
        how="left",
        maintain_order="left",
    )
    return found["earlier_row"].cast(pl.Int64).fill_null(-1).to_numpy()


def _numbered(digests: NDArray[np.uint64]) -> pl.DataFrame:
    frame = pl.DataFrame({"high": digests[:, 0], "low": digests[:, 1]})
    return frame.with_columns(pl.int_range(pl.len()).over("high", "low").alias("occurrence"))


def _outcomes(parts: list[Path], request_of: NDArray[np.int64], requests: RequestTable) -> Iterator[pa.RecordBatch]:
    """The outcomes that are wanted, under the row and sample of the request that takes each over."""
    first_row = 0
    for part in parts:
        with pq.ParquetFile(part) as file:
            columns = _added_columns(file.schema_arrow)
            for batch in file.iter_batches(batch_size=num_batch_rows(file.metadata), columns=list(columns.values())):
                request = request_of[first_row : first_row + batch.num_rows]
                first_row += batch.num_rows
                wanted = np.flatnonzero(request >= 0)
                yield _renumbered(batch.take(pa.array(wanted)), columns, requests, request[wanted])


def _added_columns(schema: pa.Schema) -> dict[str, str]:
    """By our name, what the output calls the columns of outcomes."""
    columns = {name: name for name in GENERATION_SCHEMA.names if name in schema.names and name not in ("row", "logprobs")}
    for name in ("logprobs", LOGPROBS_BESIDE_INPUT):
        if name in schema.names and schema.field(name).type.equals(GENERATION_SCHEMA.field("logprobs").type):
            columns["logprobs"] = name
    return columns


def _renumbered(
    batch: pa.RecordBatch, columns: dict[str, str], requests: RequestTable, request: NDArray[np.int64]
) -> pa.RecordBatch:
    ours = pa.RecordBatch.from_arrays([batch.column(theirs) for theirs in columns.values()], names=list(columns))
    row, sample_index = pa.array(requests.row[request]), pa.array(requests.sample_index[request])
    with_rows = with_columns(ours, {"sample_index": sample_index}).append_column("row", row)
    return conform(with_rows, GENERATION_SCHEMA)
