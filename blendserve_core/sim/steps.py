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

from blendserve_core.perf.cost import CostModel

LOAD_COLUMNS = ("num_prefill_tokens", "num_decodes", "num_sampled", "kv_tokens_read", "prefill_pairs", "kv_tokens_held")
PLACE_COLUMNS = ("shard", "is_warm_up")
SECONDS_COLUMNS = ("seconds", "tc_s", "tm_s")


class StepRecorder:
    """Collects steps in growing arrays of machine numbers, 88 bytes a step.

    A step's load and the cost model give its seconds: ``tc_s`` from tokens, sampled rows and prefill pairs, ``tm_s`` from the
    KV tokens read, and ``seconds`` from both. ``kv_tokens_held`` counts shared pages once. A run takes as long as its slowest
    shard's warm-up and, after it, the slowest shard's main run: :func:`total_seconds`.
    """

    def __init__(self) -> None:
        whole = {name: array("q") for name in (*LOAD_COLUMNS, *PLACE_COLUMNS)}
        self._columns = whole | {name: array("d") for name in SECONDS_COLUMNS}
        self._place = {"shard": 0, "is_warm_up": 0}

    def begin(self, *, shard: int, is_warm_up: bool) -> None:
        """The steps to come are those of this shard's warm-up, or of its main run."""
        self._place = {"shard": shard, "is_warm_up": int(is_warm_up)}

    def __len__(self) -> int:
        return len(self._columns["seconds"])

    def append(self, **row: Any) -> None:
        """Add one step with its load and seconds."""
        row |= self._place
        assert row.keys() == self._columns.keys(), row.keys() ^ self._columns.keys()
        for name, value in row.items():
            self._columns[name].append(value)

    def column(self, name: str) -> NDArray[Any]:
        """A copy of one column, [num_steps]."""
        values = self._columns[name]
        return np.array(values, dtype=np.int64 if values.typecode == "q" else np.float64)

    def timed_by(self, cost: CostModel) -> StepRecorder:
        """The same steps on an engine that overlaps otherwise, on the same devices."""
        other = StepRecorder()
        other._columns = self._columns | {"seconds": array("d", cost.combine(self.column("tc_s"), self.column("tm_s")))}
        return other

    def save(self, path: Path) -> None:
        """Write Parquet, or CSV where the path ends so."""
        table = pa.table({name: self.column(name) for name in (*PLACE_COLUMNS, *LOAD_COLUMNS, *SECONDS_COLUMNS)})
        if path.suffix == ".csv":
            pa_csv.write_csv(table, path)
        else:
            pq.write_table(table, path, compression="zstd")


def total_seconds(shard: NDArray[Any], is_warm_up: NDArray[Any], seconds: NDArray[Any]) -> float:
    """Seconds of a run from its steps' columns [num_steps]: shards run side by side, and start together after a warm-up."""
    phases = (np.bincount(shard[is_warm_up == phase], seconds[is_warm_up == phase]) for phase in (0, 1))
    return float(sum(shards.max(initial=0.0) for shards in phases))
