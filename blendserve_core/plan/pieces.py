"""Cutting units into pieces small enough to balance, where the least prefix is shared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from blendserve_core.plan.order import Order
from blendserve_core.plan.sharing import shared_with_previous
from blendserve_core.plan.workload import Workload

PIECES_PER_SHARD = 32


@dataclass(frozen=True, slots=True)
class Pieces:
    """Consecutive parts of an order, P of them.

    indptr [P + 1] CSR over the order;  unit [P] the unit each comes from
    load   [P, 2] shares of the job's compute and memory seconds
    """

    indptr: NDArray[np.int64]
    unit: NDArray[np.int64]
    load: NDArray[np.float64]


def cut_pieces(workload: Workload, order: Order, num_shards: int, per_unit: int = 1) -> Pieces:
    """Cut units into pieces of at most about 1/32 of a shard; larger units into ``per_unit`` near equal ones at least.

    One shard needs no pieces: its units stay whole.
    """
    shared = shared_with_previous(workload.tree, order.order)
    load = np.stack([workload.compute_s(order.order, shared), workload.memory_s(order.order)], axis=1)
    load /= np.maximum(load.sum(axis=0), np.finfo(float).tiny)
    indptr = order.unit_indptr
    if num_shards > 1:
        work = load.mean(axis=1)
        unit_work = np.add.reduceat(work, indptr[:-1]) if len(work) else work
        largest = 1 / (PIECES_PER_SHARD * num_shards)
        indptr = _cut(indptr, shared, work, np.where(unit_work > largest, np.minimum(unit_work / per_unit, largest), np.inf))
    starts = indptr[:-1]
    unit = np.searchsorted(order.unit_indptr, starts, side="right") - 1
    return Pieces(indptr, unit, np.add.reduceat(load, starts) if len(starts) else load)


@njit(cache=True)
def _cut(unit_indptr, shared, work, limit):
    """Cut wherever ``work`` since the last cut passes the unit's limit, going back to where the least prefix is shared."""
    cuts = [0]
    for unit in range(len(limit)):
        start, half, done = unit_indptr[unit], unit_indptr[unit], 0.0
        stop = unit_indptr[unit + 1]
        i = start
        while i < stop:
            done += work[i]
            i += 1
            if done <= limit[unit] / 2:
                half = i
            # The last of several equal pieces must not grow by a rounding error.
            if done >= limit[unit] * 0.999 and i < stop:
                start = _least_shared(shared, max(half, start + 1), i)
                cuts.append(start)
                i, half, done = start, start, 0.0
        if stop > cuts[-1]:
            cuts.append(stop)
    return np.array(cuts, np.int64)


@njit(cache=True)
def _least_shared(shared, first, last):
    best = last
    for i in range(last - 1, first - 1, -1):
        if shared[i] < shared[best]:
            best = i
    return best
