"""Generations come in the order in which sequences finish; parted by row range on disk, a range can be sorted in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

MIN_BUCKET_ROWS = 8192
MAX_BUCKETS = 256
_GROUP_ROWS = 16_384
_GROUP_BYTES = 64 << 20


class Buckets:
    """Temporary files in ``folder``, one for each range of input rows. Fill by :meth:`add`, then read by :meth:`load`."""

    def __init__(self, folder: Path, schema: pa.Schema, num_rows: int) -> None:
        self.bucket_rows = max(MIN_BUCKET_ROWS, -(-num_rows // MAX_BUCKETS))
        self._schema = schema
        num_buckets = max(1, -(-num_rows // self.bucket_rows))
        self._paths = [folder / f"bucket-{i:03d}.arrow" for i in range(num_buckets)]
        self._writers = [pa.ipc.new_file(str(path), schema) for path in self._paths]

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Part generations by their column ``row``; their order is kept within a bucket."""
        for table in grouped(batches, self._schema):
            buckets = table.column("row").to_numpy() // self.bucket_rows
            order = np.argsort(buckets, kind="stable")
            present, starts = np.unique(buckets[order], return_index=True)
            ordered = table.take(order)
            for bucket, start, end in zip(map(int, present), starts, [*starts[1:], len(order)], strict=True):
                self._writers[bucket].write_table(ordered.slice(start, end - start))

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    def load(self, bucket: int) -> pa.Table:
        """One bucket sorted by (row, sample_index). Of those that are equal in both only the first to come is there."""
        table = pa.ipc.open_file(pa.memory_map(str(self._paths[bucket]))).read_all().combine_chunks()
        rows, samples = table.column("row").to_numpy(), table.column("sample_index").to_numpy()
        order = np.lexsort((samples, rows))
        rows, samples = rows[order], samples[order]
        is_first = np.ones(len(order), dtype=np.bool_)
        is_first[1:] = (rows[1:] != rows[:-1]) | (samples[1:] != samples[:-1])
        return table.take(order[is_first])


def grouped(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Batches gathered to tables of some ten thousand rows, fewer where rows are large."""
    waiting: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        waiting.append(batch)
        num_rows += batch.num_rows
        num_bytes += batch.nbytes
        if num_rows >= _GROUP_ROWS or num_bytes >= _GROUP_BYTES:
            yield pa.Table.from_batches(waiting, schema).combine_chunks()
            waiting, num_rows, num_bytes = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema).combine_chunks()
