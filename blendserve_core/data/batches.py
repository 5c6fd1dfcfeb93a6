"""How many rows are held at once, and how many are wanted at all."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

MAX_BATCH_ROWS = 4096
MAX_BATCH_BYTES = 32 << 20


def num_batch_rows(num_bytes: int, num_rows: int) -> int:
    """Rows of a batch, given the size of them all: a few thousand, fewer where rows are large."""
    bytes_per_row = num_bytes / max(num_rows, 1)
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
