"""Cutting an order into data-parallel shards with balanced compute, memory and tail (paper section 5.5).

Units are first cut into pieces small enough to balance, where the least prefix is shared; a piece is also what an idle shard
may take from a busy one. Several ways of handing pieces to shards are built, and the one with the least predicted time wins.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from blendserve_core.plan.arrays import sum_by, sums_before
from blendserve_core.plan.order import Order
from blendserve_core.plan.predict import Prediction, predict
from blendserve_core.plan.sharing import shared_with_previous
from blendserve_core.plan.workload import Workload

PIECES_PER_SHARD = 32
TIE = 0.01
"""Cuts within this share of the fastest count as equally fast; the first of them is taken."""


@dataclass(frozen=True, slots=True)
class Partition:
    """``orders`` has one entry per shard; ``method`` names how the order was cut."""

    orders: tuple[Order, ...]
    prediction: Prediction
    method: str


@dataclass(frozen=True, slots=True)
class Pieces:
    """Consecutive parts of an order, P of them.

    indptr [P + 1] CSR over the order;  unit [P] the unit each comes from
    load   [P, 2] shares of the job's compute and memory seconds
    """

    indptr: NDArray[np.int64]
    unit: NDArray[np.int64]
    load: NDArray[np.float64]


def cut_in_sequence(workload: Workload, order: Order, num_shards: int) -> Partition:
    """Consecutive ranges of nearly equal work: for the plain orders, which must not be reordered."""
    pieces = cut_pieces(workload, order, num_shards)
    load = pieces.load.mean(axis=1)
    middle = (np.cumsum(load) - load / 2) / max(load.sum(), np.finfo(float).tiny)
    shard = np.minimum((middle * num_shards).astype(np.int64), num_shards - 1)
    return _partition(workload, order, pieces, shard, num_shards, "ranges", is_mixed=False)


def cut_balanced(workload: Workload, order: Order, num_shards: int) -> Partition:
    """The best cut of a density order: each unit dealt to all shards, vector LPT over pieces, or the paper's dual scan."""
    pieces = cut_pieces(workload, order, num_shards)
    if num_shards == 1:
        return _partition(workload, order, pieces, np.zeros(len(pieces.unit), np.int64), 1, "whole", is_mixed=True)
    dealt = cut_pieces(workload, order, num_shards, per_unit=num_shards)
    candidates = [
        ("dealt", dealt, deal(dealt, num_shards, spread_units=True)),
        ("lpt", pieces, deal(pieces, num_shards)),
        ("dual-scan", pieces, dual_scan(pieces, num_shards)),
    ]
    partitions = [_partition(workload, order, p, shard, num_shards, name, is_mixed=True) for name, p, shard in candidates]
    slowest_s = np.array([partition.prediction.predicted_s.max() for partition in partitions])
    return partitions[int(np.argmax(slowest_s <= slowest_s.min() * (1 + TIE)))]


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


def deal(pieces: Pieces, num_shards: int, *, spread_units: bool = False) -> NDArray[np.int64]:
    """[P] shard of each piece by vector LPT: the largest first, each to where the fuller resource stays lowest.

    With ``spread_units`` a unit's pieces go to as many shards as there are, so that all get requests of every kind.
    """
    size = pieces.load.max(axis=1, initial=0.0)
    largest_first = np.argsort(-size, kind="stable")
    if spread_units:
        largest_first = np.lexsort((-size, pieces.unit, -sum_by(pieces.unit, size)[pieces.unit]))
    return _deal(largest_first, pieces.load, pieces.unit, num_shards, spread_units)


@njit(cache=True)
def _deal(order, load, unit, num_shards, spread_units):
    shard = np.zeros(len(order), np.int64)
    done = np.zeros((num_shards, 2))
    num_of_unit, last_unit = np.zeros(num_shards), -1
    for piece in order:
        if spread_units and unit[piece] != last_unit:
            num_of_unit[:] = 0
            last_unit = unit[piece]
        # Loads are shares of the whole job, so one piece of the same unit outweighs any load.
        best, least = 0, np.inf
        for candidate in range(num_shards):
            fullness = num_of_unit[candidate] + max(done[candidate, 0] + load[piece, 0], done[candidate, 1] + load[piece, 1])
            if fullness < least:
                best, least = candidate, fullness
        shard[piece] = best
        done[best] += load[piece]
        num_of_unit[best] += spread_units
    return shard


def dual_scan(pieces: Pieces, num_shards: int) -> NDArray[np.int64]:
    """[P] shard of each piece as the paper cuts: two cursors, one shard after another filled to equal work and density."""
    shard = np.zeros(len(pieces.unit), np.int64)
    left, right = 0, len(shard) - 1
    done = np.zeros(2)
    while left <= right:
        # Taking from the side whose resource lags keeps what is done at the whole job's density.
        piece = left if done[0] <= done[1] else right
        left, right = (left + 1, right) if piece == left else (left, right - 1)
        middle = (done + pieces.load[piece] / 2).mean()
        shard[piece] = min(int(middle * num_shards), num_shards - 1)
        done += pieces.load[piece]
    return shard


def _partition(
    workload: Workload,
    order: Order,
    pieces: Pieces,
    shard_of_piece: NDArray[np.int64],
    num_shards: int,
    method: str,
    *,
    is_mixed: bool,
) -> Partition:
    """Collect each shard's pieces, in the order they had."""
    by_shard = np.argsort(shard_of_piece, kind="stable")
    sizes = np.diff(pieces.indptr)
    requests = order.order[np.argsort(np.repeat(shard_of_piece, sizes), kind="stable")]
    unit_indptr = sums_before(sizes[by_shard])
    piece_indptr = sums_before(np.bincount(shard_of_piece, minlength=num_shards))
    shard_indptr = unit_indptr[piece_indptr]
    orders = tuple(
        Order(requests[shard_indptr[rank] : shard_indptr[rank + 1]], unit_indptr[first : last + 1] - unit_indptr[first])
        for rank, (first, last) in enumerate(itertools.pairwise(piece_indptr))
    )
    return Partition(orders, predict(workload, requests, shard_indptr, is_mixed=is_mixed), method)
