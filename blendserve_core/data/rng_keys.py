"""Keys of the counter-based generator: a request's random numbers depend on its key and the token's position alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_OWN_SEED, _RUN_SEED = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)


def rng_keys(
    seed: NDArray[np.uint64],
    has_seed: NDArray[np.bool_],
    row: NDArray[np.int64],
    sample_index: NDArray[np.int32],
    run_seed: int,
) -> NDArray[np.uint64]:
    """One key per request; all arrays are [num_requests].

    A row with a seed of its own gets hash(seed, sample), so that equal rows give equal texts; the others get
    hash(run seed, row, sample).
    """
    run = np.uint64(run_seed & (2**64 - 1))
    own_state = _mix(seed ^ _OWN_SEED)
    run_state = _mix(_mix(np.full(len(row), run ^ _RUN_SEED)) ^ row.astype(np.uint64))
    return _mix(np.where(has_seed, own_state, run_state) + sample_index.astype(np.uint64))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: every bit of the input changes half the bits of the output."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
