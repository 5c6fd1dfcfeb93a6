"""Ids must tell requests apart. They are compared by 64-bit hashes; only those that meet are looked up again in the rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from blendserve_core.data.arrays import null_mask, plain
from blendserve_core.text.printable import quoted

_NUM_NAMED = 5
_NUM_LOOKED_UP = 1000


class DuplicateIds:
    """Takes the id column batch by batch, eight bytes a row, and refuses ids that occur twice. Null is no id."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._hashes: list[NDArray[np.uint64]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        ids = batch.column(self._column)
        self._hashes.append(_hash(ids)[~null_mask(ids)])

    def refuse(self, parts: list[Path], describe_rows: Callable[[list[int]], str]) -> None:
        """Raise ValueError naming ids that occur twice and where. ``parts`` hold the same rows again, in order."""
        hashes = np.sort(np.concatenate([np.zeros(0, dtype=np.uint64), *self._hashes]))
        repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])[:_NUM_LOOKED_UP]
        rows_by_id = self._rows_by_id(parts, repeated) if len(repeated) else {}
        duplicates = {name: rows for name, rows in rows_by_id.items() if len(rows) > 1}
        if duplicates:
            named = "; ".join(
                f"{quoted(name)} in {describe_rows(rows)}" for name, rows in list(duplicates.items())[:_NUM_NAMED]
            )
            raise ValueError(
                f"column {self._column!r}: ids that occur more than once: {named}. Make them unique, or keep them "
                "with --on-duplicate-id keep: rows are then told apart by their position."
            )

    def _rows_by_id(self, parts: list[Path], repeated: NDArray[np.uint64]) -> dict[Any, list[int]]:
        rows_by_id: dict[Any, list[int]] = {}
        first_row = 0
        for part in parts:
            for batch in pq.ParquetFile(part).iter_batches(columns=[self._column]):
                ids = batch.column(0)
                for row in np.flatnonzero(np.isin(_hash(ids), repeated) & ~null_mask(ids)).tolist():
                    rows_by_id.setdefault(ids[row].as_py(), []).append(first_row + row)
                first_row += batch.num_rows
        return rows_by_id


def _hash(ids: pa.Array) -> NDArray[np.uint64]:
    series = pl.from_arrow(plain(ids))
    assert isinstance(series, pl.Series)
    return series.hash().to_numpy()
