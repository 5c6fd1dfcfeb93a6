"""How many rows are held at once, and how many are wanted at all."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

MAX_BATCH_ROWS = 4096
MAX_BATCH_BYTES = 32 << 20


def num_batch_rows(parquet: pq.FileMetaData) -> int:
    """Rows of a batch of a Parquet file: a few thousand, fewer where rows are large."""
    num_bytes = sum(parquet.row_group(i).total_byte_size for i in range(parquet.num_row_groups))
    return rows_of_size(num_bytes / max(parquet.num_rows, 1))


def rows_of_size(bytes_per_row: float) -> int:
    return max(1, min(MAX_BATCH_ROWS, int(MAX_BATCH_BYTES / max(bytes_per_row, 1.0))))


def first_rows(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first ``limit`` rows of a stream; batches after them are not asked for."""
    num_left = limit
    for batch in batches:
        if num_left is not None and batch.num_rows >= num_left:
            yield batch.slice(0, num_left)
            return
        if batch.num_rows:
            yield batch
        if num_left is not None:
            num_left -= batch.num_rows


def listed(numbers: list[int], most: int = 5) -> str:
    """The first few of a list that may run to thousands."""
    return ", ".join(map(str, numbers[:most])) + (" and more" if len(numbers) > most else "")
