"""Which outcomes a job owes, whether each is on disk, and where each came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from blendserve_core.data.duplicates import Duplicates
from blendserve_core.data.parts import finished_keys, read_generations, read_parts
from blendserve_core.data.staged_files import ERRORS_FILE, REUSED_FOLDER
from blendserve_core.data.unify import conform
from blendserve_core.requests import RequestTable

_NUM_NAMED = 10


def check_outcomes(staged: Path, folders: Iterable[Path]) -> tuple[int, int]:
    """Number of outcomes the job owes (one per input row and sample), and how many more than that are on disk.

    Raises ValueError naming input rows that have none.
    """
    requests, duplicates = RequestTable.load(staged), Duplicates.load(staged)
    reused_rows, _ = finished_keys([staged / REUSED_FOLDER])
    rows, samples = finished_keys(folders)
    bad_rows = _bad_rows(staged)
    stride = 1 + int(max(requests.sample_index.max(initial=0), samples.max(initial=0)))
    owed = np.concatenate([requests.row * stride + requests.sample_index, bad_rows * stride])
    found = np.concatenate([rows * stride + samples, bad_rows * stride])
    missing = owed[~np.isin(owed, found)]
    if len(missing):
        named = ", ".join(str(row) for row in np.unique(missing // stride)[:_NUM_NAMED])
        more = " and more" if len(missing) > _NUM_NAMED else ""
        raise ValueError(
            f"{len(missing)} sequences have no outcome yet; input rows (from 0): {named}{more}. "
            "Run the job again to generate them."
        )
    return len(owed) + duplicates.num_duplicates + len(reused_rows), len(found) - len(owed)


class Origin(IntEnum):
    """How an outcome came about: by an engine or, for a row that cannot be served, by staging; or as a copy."""

    COMPUTED = 0
    DUPLICATE = 1
    REUSED = 2


ORIGIN_FIELD = pa.field("origin", pa.int8(), nullable=False)


def all_outcomes(staged: Path, folders: Iterable[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Every outcome of a job with its origin, in no order; ``schema`` names the columns that are wanted."""
    names = [name for name in schema.names if name != ORIGIN_FIELD.name]
    duplicates = Duplicates.load(staged)
    yield from _with_origin(read_generations(staged / ERRORS_FILE, names), Origin.COMPUTED, schema)
    for folder, origin in [(staged / REUSED_FOLDER, Origin.REUSED), *((folder, Origin.COMPUTED) for folder in folders)]:
        for batch in read_parts([folder], names):
            yield from _with_origin([batch], origin, schema)
            yield from _with_origin(duplicates.copies([batch]), Origin.DUPLICATE, schema)


def _with_origin(batches: Iterable[pa.RecordBatch], origin: Origin, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        origins = pa.array(np.full(batch.num_rows, origin, dtype=np.int8))
        yield conform(batch.append_column(ORIGIN_FIELD, origins), schema)


def _bad_rows(staged: Path) -> NDArray[np.int64]:
    rows = [batch.column("row").to_numpy() for batch in read_generations(staged / ERRORS_FILE, ["row"])]
    return np.concatenate([np.zeros(0, dtype=np.int64), *rows])
