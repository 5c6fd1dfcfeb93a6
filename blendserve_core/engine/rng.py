"""A counter-based generator: a request's draws depend on its key and the output position, and on nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniforms(keys: NDArray[np.uint64], positions: NDArray[np.int32]) -> NDArray[np.float64]:
    """One number in [0, 1) per (key, position), [N]: splitmix64's stream of a scrambled key, in exact integers."""
    # Keys that differ by a multiple of the increment would otherwise give one stream, shifted.
    counters = _mix(keys) + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return (_mix(counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's output function (Steele, Lea and Flood, 2014), modulo 2**64."""
    z = (z ^ (z >> np.uint64(30))) * _FACTORS[0]
    z = (z ^ (z >> np.uint64(27))) * _FACTORS[1]
    return z ^ (z >> np.uint64(31))
