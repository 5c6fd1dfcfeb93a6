"""Array idioms the planner repeats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def sum_by(index: NDArray[np.integer], values: NDArray[np.float64], size: int = 0) -> NDArray[np.float64]:
    """[max(size, largest index + 1)] sum of the ``values`` [K] at each ``index`` [K]."""
    return np.bincount(index, weights=values, minlength=size).astype(np.float64)


def sums_before(values: NDArray) -> NDArray:
    """[K + 1] prefix sums from 0 on, so that a range's sum is a difference: int64 for integers, float64 for others."""
    before = np.zeros(len(values) + 1, np.int64 if np.issubdtype(values.dtype, np.integer) else np.float64)
    np.cumsum(values, out=before[1:])
    return before
