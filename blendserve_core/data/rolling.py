"""Rows as a series of Parquet files of bounded size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from blendserve_core.data.durable import put_in_place, temporary_path
from blendserve_core.data.views import declaration, without_views

MAX_PART_ROWS = 65_536
MAX_PART_BYTES = 256 << 20


def parquet_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Writer of a file that reads back in ``schema``; it takes rows in ``without_views(schema)``."""
    writer = pq.ParquetWriter(
        path, without_views(schema), compression="zstd", use_compliant_nested_type=False, store_schema=False
    )
    writer.add_key_value_metadata(declaration(schema))
    return writer


class RollingWriter:
    """Rows into files ``<stem>-00000.parquet`` and on, of at most ``max_rows``, closed once they have ``max_bytes``.

    They read back in ``schema``, and take rows in ``without_views(schema)``. There is always at least one, so that the schema
    is on disk even without a row. ``metadata`` goes into the footer of each.
    """

    def __init__(
        self,
        folder: Path,
        stem: str,
        schema: pa.Schema,
        max_rows: int = MAX_PART_ROWS,
        max_bytes: int = MAX_PART_BYTES,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._folder, self._stem, self._schema = folder, stem, schema
        self._max_rows, self._max_bytes = max_rows, max_bytes
        self._metadata = dict(metadata or {})
        self._paths: list[Path] = []
        self._writer: pq.ParquetWriter | None = None
        self._num_rows = self._num_bytes = 0

    def __enter__(self) -> RollingWriter:
        return self

    @property
    def paths(self) -> list[Path]:
        """The files written so far, in order."""
        return list(self._paths)

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        offset = 0
        while offset < rows.num_rows:
            fitting = rows.slice(offset, self._max_rows - self._num_rows)
            self._write(fitting)
            offset += fitting.num_rows

    def _write(self, rows: pa.RecordBatch | pa.Table) -> None:
        writer = self._writer or self._open()
        writer.write(rows)
        self._num_rows += rows.num_rows
        self._num_bytes += rows.nbytes
        if self._num_rows >= self._max_rows or self._num_bytes >= self._max_bytes:
            self._close()

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None and not self._paths:
            self._open()
        if self._writer is not None and error_type is None:
            self._close()

    def _open(self) -> pq.ParquetWriter:
        path = self._folder / f"{self._stem}-{len(self._paths):05d}.parquet"
        self._writer = parquet_writer(temporary_path(path), self._schema)
        self._writer.add_key_value_metadata(self._metadata)
        self._paths.append(path)
        return self._writer

    def _close(self) -> None:
        assert self._writer is not None
        self._writer.close()
        self._writer = None
        self._num_rows = self._num_bytes = 0
        put_in_place(temporary_path(self._paths[-1]), self._paths[-1])
