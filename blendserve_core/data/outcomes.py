"""Which outcomes a job owes, and whether each is on disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blendserve_core.data.parts import finished_keys, read_generations
from blendserve_core.data.staged_files import ERRORS_FILE
from blendserve_core.requests import RequestTable

_NUM_NAMED = 10


def check_outcomes(staged: Path, folders: Iterable[Path]) -> tuple[int, int]:
    """Number of outcomes the job owes (one per input row and sample), and how many more are on disk a second time.

    Raises ValueError naming input rows that have none.
    """
    requests = RequestTable.load(staged)
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
    assert np.isin(found, owed).all(), "an outcome of a request that is not in the job"
    return len(owed), len(found) - len(owed)


def _bad_rows(staged: Path) -> NDArray[np.int64]:
    rows = [batch.column("row").to_numpy() for batch in read_generations(staged / ERRORS_FILE, ["row"])]
    return np.concatenate([np.zeros(0, dtype=np.int64), *rows])
