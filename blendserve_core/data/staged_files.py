"""The files of a staged job: token ids in one memory-mappable file, and error rows, both written as a stream."""

from __future__ import annotations

import shutil
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.lib import format as npy
from numpy.typing import NDArray

from blendserve_core.data.durable import put_in_place, temporary_path
from blendserve_core.data.generation import Generation, to_table
from blendserve_core.data.rolling import parquet_writer
from blendserve_core.requests import COLUMNS_FILE, RESPONSE_FORMATS_FILE, STOP_SETS_FILE, TOKENS_FILE, RequestTable
from schemas.arrow import GENERATION_SCHEMA

ERRORS_FILE = "errors.parquet"
MANIFEST_FILE = "manifest.json"
DUPLICATES_FILE = "duplicates.npz"
ROWS_FILE = "rows.npz"
REUSED_FOLDER = "reused"
_FILES = (
    MANIFEST_FILE, ERRORS_FILE, DUPLICATES_FILE, ROWS_FILE, TOKENS_FILE, COLUMNS_FILE, STOP_SETS_FILE, RESPONSE_FORMATS_FILE,
)  # fmt: skip


def input_parts(folder: Path) -> list[Path]:
    """Files with the input's rows, in order."""
    return sorted(folder.glob("input-*.parquet"))


def clear(folder: Path) -> None:
    """Remove what an interrupted staging left; its manifest first, which says that the rest is whole."""
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    for part in [*input_parts(folder), *folder.glob(".*.tmp")]:
        part.unlink()
    shutil.rmtree(folder / REUSED_FOLDER, ignore_errors=True)


def is_whole(folder: Path) -> bool:
    """Whether a staged job's files can be opened; a machine that crashed may have lost some of them."""
    try:
        RequestTable.load(folder)
        for path in [*input_parts(folder), folder / ERRORS_FILE]:
            pq.read_metadata(path)
    except (OSError, EOFError, ValueError, KeyError, BadZipFile, pa.ArrowException):
        return False
    return True


class TokenWriter:
    """Token ids appended to a ``.npy`` file, whose header is written last, when their number is known."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TOKENS_FILE
        self._file = temporary_path(self._path).open("wb")
        self._write_header(num_tokens=0)
        self.num_tokens = 0

    def __enter__(self) -> TokenWriter:
        return self

    def write(self, token_ids: NDArray[np.int32]) -> None:
        self._file.write(np.ascontiguousarray(token_ids, dtype=np.int32).data)
        self.num_tokens += len(token_ids)

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            self._file.seek(0)
            self._write_header(self.num_tokens)
        self._file.close()
        if error_type is None:
            put_in_place(temporary_path(self._path), self._path)

    def _write_header(self, num_tokens: int) -> None:
        """The header has room for any length, so that writing it again moves nothing."""
        description = {"descr": "<i4", "fortran_order": False, "shape": (num_tokens,)}
        npy.write_array_header_1_0(self._file, description)


class ErrorWriter:
    """Rows that cannot be served, as generations with an error."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ERRORS_FILE
        self._writer = parquet_writer(temporary_path(self._path), GENERATION_SCHEMA)
        self.num_errors = 0

    def __enter__(self) -> ErrorWriter:
        return self

    def write(self, errors: list[Generation]) -> None:
        if errors:
            self._writer.write_table(to_table(errors))
            self.num_errors += len(errors)

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self._writer.close()
        if error_type is None:
            put_in_place(temporary_path(self._path), self._path)
