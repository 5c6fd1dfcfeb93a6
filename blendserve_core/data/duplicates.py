"""Requests that ask for the very same as another: computed once, and copied to each when the rows are put together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from blendserve_core.data.durable import save_arrays
from blendserve_core.data.staged_files import DUPLICATES_FILE
from blendserve_core.requests import RequestTable

# A copy may be large, and a prompt may be in every row.
_COPIES_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Duplicates:
    """D samples, and the one whose outcome each shares (``of_row``, ``of_sample_index``); all arrays are [D]."""

    row: NDArray[np.int64]
    sample_index: NDArray[np.int32]
    of_row: NDArray[np.int64]
    of_sample_index: NDArray[np.int32]

    @classmethod
    def among(cls, requests: RequestTable, first: NDArray[np.int64]) -> Duplicates:
        """Those requests of a table for which another one stands: ``first`` [R], themselves for the rest."""
        copies = np.flatnonzero(first != np.arange(len(first)))
        copies = copies[np.argsort(first[copies], kind="stable")]
        row, sample_index = requests.row, requests.sample_index
        return cls(row[copies], sample_index[copies], row[first[copies]], sample_index[first[copies]])

    @property
    def num_duplicates(self) -> int:
        return len(self.row)

    def save(self, folder: Path) -> None:
        save_arrays(folder / DUPLICATES_FILE, **asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Duplicates:
        with np.load(folder / DUPLICATES_FILE) as arrays:
            return cls(**arrays)

    def copies(self, outcomes: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For each outcome that others share, a copy under every other's row and sample; their prompts count as cached."""
        if not self.num_duplicates:
            return
        stride = 1 + int(self.of_sample_index.max(initial=0))
        keys = self.of_row * stride + self.of_sample_index
        for batch in outcomes:
            samples = batch.column("sample_index").to_numpy()
            wanted = np.where(samples < stride, batch.column("row").to_numpy() * stride + samples, -1)
            start, end = np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")
            num_copies = end - start
            source = np.repeat(np.arange(batch.num_rows), num_copies)
            copy = np.arange(len(source)) + np.repeat(start - (np.cumsum(num_copies) - num_copies), num_copies)
            for offset in range(0, len(source), _COPIES_AT_ONCE):
                chunk = slice(offset, offset + _COPIES_AT_ONCE)
                yield self._copy(batch.take(pa.array(source[chunk])), copy[chunk])

    def _copy(self, outcomes: pa.RecordBatch, copy: NDArray[np.int64]) -> pa.RecordBatch:
        changed = {
            "row": pa.array(self.row[copy]),
            "sample_index": pa.array(self.sample_index[copy]),
            "num_cached_tokens": outcomes.column("num_prompt_tokens"),
        }
        return with_columns(outcomes, changed)


def with_columns(batch: pa.RecordBatch, changed: dict[str, pa.Array]) -> pa.RecordBatch:
    """The batch with other values in some of its columns."""
    columns = [changed.get(name, batch.column(name)) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
