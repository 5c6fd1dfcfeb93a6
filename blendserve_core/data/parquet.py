"""Parquet files as one stream of rows, whatever the size of their row groups and however their schemas drift."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from blendserve_core.data.batches import first_rows, listed, num_batch_rows
from blendserve_core.data.files import InputFile, digest_of
from blendserve_core.data.unify import conform, unify_schemas
from blendserve_core.data.views import without_views

_READ_BUFFER_BYTES = 1 << 20


class ParquetSource:
    """Rows of Parquet files, file by file. Hive partition values become text columns after the files' own."""

    def __init__(self, files: list[InputFile], limit: int | None = None) -> None:
        self._files = files
        self._limit = limit
        self.schema = unify_schemas((file.path, _schema_with_partitions(file)) for file in files).remove_metadata()
        self._read_schema = without_views(self.schema)

    @property
    def digest(self) -> str:
        return digest_of(self._files)

    def batches(self) -> Iterator[pa.RecordBatch]:
        return first_rows(self._all_batches(), self._limit)

    def describe_rows(self, rows: list[int]) -> str:
        return f"rows {listed(rows)} (counted from 0)"

    def _all_batches(self) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            for batch in _read(file):
                yield conform(_with_partitions(batch, file), self._read_schema)


def _read(file: InputFile) -> Iterator[pa.RecordBatch]:
    try:
        with _open(file) as parquet:
            yield from parquet.iter_batches(batch_size=num_batch_rows(parquet.metadata))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file.path}: cannot be read to its end: {error}") from error


def _open(file: InputFile) -> pq.ParquetFile:
    # A buffered stream reads a column chunk piece by piece: memory does not grow with the row group.
    source = file.path if file.is_local else file.open()
    return pq.ParquetFile(source, buffer_size=_READ_BUFFER_BYTES, pre_buffer=False)


def _schema_with_partitions(file: InputFile) -> pa.Schema:
    try:
        with _open(file) as parquet:
            schema = parquet.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file.path}: not a Parquet file that can be read: {error}") from error
    for name in file.partitions:
        if name not in schema.names:
            schema = schema.append(pa.field(name, pa.string()))
    return schema


def _with_partitions(batch: pa.RecordBatch, file: InputFile) -> pa.RecordBatch:
    for name, value in file.partitions.items():
        if name not in batch.schema.names:
            batch = batch.append_column(name, pa.repeat(pa.scalar(value, pa.string()), batch.num_rows))
    return batch
