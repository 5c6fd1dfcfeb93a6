"""Finished rows that wait for their part file: whoever kills the process, they are in a file already.

Entries are appended, each with its length and checksum, and not synced: they survive their writer, and part files the machine.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import pyarrow as pa

from blendserve_core.data.durable import full_disk_named
from schemas.arrow import GENERATION_SCHEMA

JOURNAL_FILE = "journal.bin"
_HEAD = struct.Struct("<QI")


class Journal:
    """The journal of one engine's folder; only its PartWriter writes it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL_FILE
        self._descriptor: int | None = None

    def append(self, rows: pa.Table) -> None:
        """Add rows of ``GENERATION_SCHEMA``. Raises DiskFull; what was appended before is whole."""
        entry = b"".join(_entry(batch) for batch in rows.to_batches())
        with full_disk_named(self._path):
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            num_written = os.write(self._descriptor, entry)
            if num_written < len(entry):  # a disk that fills up takes a part and fails on the rest
                os.write(self._descriptor, entry[num_written:])

    def clear(self) -> None:
        """Forget the entries, which are in a part file now."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_journal(folder: Path) -> pa.Table:
    """Rows that a dead writer left in this folder's journal, up to the first entry that is not whole."""
    path, batches, end = folder / JOURNAL_FILE, [], 0
    content = path.read_bytes() if path.exists() else b""
    while len(content) - end >= _HEAD.size:
        num_bytes, checksum = _HEAD.unpack_from(content, end)
        payload = content[end + _HEAD.size : end + _HEAD.size + num_bytes]
        if num_bytes == 0 or len(payload) < num_bytes or zlib.crc32(payload) != checksum:
            break
        batches.append(pa.ipc.read_record_batch(pa.py_buffer(payload), GENERATION_SCHEMA))
        end += _HEAD.size + num_bytes
    return pa.Table.from_batches(batches, GENERATION_SCHEMA)


def _entry(batch: pa.RecordBatch) -> bytes:
    payload = batch.serialize().to_pybytes()
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload
