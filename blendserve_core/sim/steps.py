"""One row per simulated step, for plots and for recomputing the time."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

COUNT_COLUMNS = ("num_prefill_tokens", "num_decodes", "num_sampled", "kv_tokens_read", "prefill_pairs", "kv_tokens_held")
SECONDS_COLUMNS = ("seconds", "compute_s", "memory_s")


class StepRecorder:
    """Collects steps in growing arrays of machine numbers, 72 bytes a step.

    The first five columns and the cost model give the next three: ``compute_s`` from tokens, sampled rows and prefill pairs,
    ``memory_s`` from the KV tokens read, and ``seconds`` from both. ``kv_tokens_held`` counts shared pages once.
    """

    def __init__(self) -> None:
        self._columns = {name: array("q") for name in COUNT_COLUMNS} | {name: array("d") for name in SECONDS_COLUMNS}

    def __len__(self) -> int:
        return len(self._columns["seconds"])

    def append(self, **row: Any) -> None:
        """Add one step; exactly the columns of this module."""
        assert row.keys() == self._columns.keys(), row.keys() ^ self._columns.keys()
        for name, value in row.items():
            self._columns[name].append(value)

    def column(self, name: str) -> NDArray[Any]:
        """A copy of one column, [num_steps]."""
        values = self._columns[name]
        return np.array(values, dtype=np.int64 if values.typecode == "q" else np.float64)

    def save(self, path: Path) -> None:
        """Write Parquet, or CSV where the path ends so."""
        table = pa.table({name: self.column(name) for name in (*COUNT_COLUMNS, *SECONDS_COLUMNS)})
        if path.suffix == ".csv":
            pa_csv.write_csv(table, path)
        else:
            pq.write_table(table, path, compression="zstd")
