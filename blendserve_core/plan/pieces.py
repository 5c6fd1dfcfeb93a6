"""Cutting units into pieces small enough to balance, where the least prefix is shared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from blendserve_core.plan.order import Order
from blendserve_core.plan.sharing import shared_with_previous
from blendserve_core.plan.workload import Workload

PIECES_PER_SHARD = 128
MAX_LOSS = 0.1
"""Share of a piece's work that a cut may cost, by computing again the prefix that is shared across it."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Consecutive parts of an order, P of them.

    indptr [P + 1] CSR over the order;  unit [P] the unit each comes from
    seconds [P, 2] of compute and of memory time, each piece on its own;  longest [P] how long an output may get
    """

    indptr: NDArray[np.int64]
    unit: NDArray[np.int64]
    seconds: NDArray[np.float64]
    longest: NDArray[np.float64]

    @property
    def load(self) -> NDArray[np.float64]:
        """[P, 2] shares of all pieces' compute and memory seconds."""
        return self.seconds / _totals(self.seconds)


def cut_pieces(workload: Workload, order: Order, num_shards: int, *, per_unit: int = 1, max_loss: float = MAX_LOSS) -> Pieces:
    """Cut units into pieces of at most about 1/128 of a shard; larger units into ``per_unit`` near equal ones at least.

    A cut costs at most ``max_loss`` of its piece's work, so units whose requests share a long prefix may stay whole. So do all
    units for a single shard.
    """
    requests = order.order
    shared = shared_with_previous(workload.tree, requests)
    seconds = np.stack([workload.compute_s(requests, shared), workload.memory_s(requests)], axis=1)
    indptr = order.unit_indptr
    if num_shards > 1:
        total_s = _totals(seconds)
        loss = workload.cost.compute_s(shared, 0, 0) / total_s[0] / 2
        work, largest = (seconds / total_s).mean(axis=1), 1 / (PIECES_PER_SHARD * num_shards)
        unit_work = np.add.reduceat(work, indptr[:-1]) if len(work) else work
        limit = np.where(unit_work > largest, np.minimum(unit_work / per_unit, largest), np.inf)
        indptr = _cut(indptr, work, loss, limit, max_loss)
    starts = indptr[:-1]
    # A piece may come first on its shard, and then computes its first prompt whole.
    seconds[starts, 0] = workload.compute_s(requests[starts], np.zeros(len(starts), np.int32))
    longest = workload.longest_tokens()[requests]
    if len(starts):
        seconds, longest = np.add.reduceat(seconds, starts), np.maximum.reduceat(longest, starts)
    return Pieces(indptr, np.searchsorted(order.unit_indptr, starts, side="right") - 1, seconds, longest)


def _totals(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """[2] column sums, never 0."""
    return np.maximum(seconds.sum(axis=0), np.finfo(float).tiny)


@njit(cache=True)
def _cut(unit_indptr, work, loss, limit, max_loss):
    """Cut when ``work`` since the last cut passes the unit's limit, where the least is lost between half of it and there."""
    cuts = [0]
    for unit in range(len(limit)):
        done, best, done_at_best = 0.0, -1, 0.0
        i = unit_indptr[unit] + 1
        while i < unit_indptr[unit + 1]:
            done += work[i - 1]
            if done > limit[unit] / 2 and (best < 0 or loss[i] <= loss[best]):
                best, done_at_best = i, done
            # The last of several equal pieces must not grow by a rounding error.
            if done >= limit[unit] * 0.999 and loss[best] <= max_loss * done_at_best:
                cuts.append(best)
                i, done, best = best, 0.0, -1
            i += 1
        if unit_indptr[unit + 1] > cuts[-1]:
            cuts.append(unit_indptr[unit + 1])
    return np.array(cuts, np.int64)
