"""Cutting an order into data-parallel shards with balanced compute, memory and tail (paper section 5.5).

Units are first cut into pieces, which become the shards' units and with that what an idle shard may take from a busy one.
Several ways of handing pieces to shards are built, and the one with the least predicted time wins.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from blendserve_core.plan.arrays import sum_by, sums_before
from blendserve_core.plan.order import Order
from blendserve_core.plan.pieces import Pieces, cut_pieces
from blendserve_core.plan.predict import Prediction, predict
from blendserve_core.plan.stratify import stratify
from blendserve_core.plan.workload import Workload

TIE = 0.01
"""Cuts within this share of the fastest count as equally fast; the first of them is taken."""


@dataclass(frozen=True, slots=True)
class Partition:
    """``orders`` has one entry per shard; ``method`` names how the order was cut."""

    orders: tuple[Order, ...]
    prediction: Prediction
    method: str


def cut_in_sequence(workload: Workload, order: Order, num_shards: int) -> Partition:
    """Consecutive ranges of nearly equal work: for the plain orders, which must not be reordered."""
    kinds = {"ranges": cut_pieces(workload, order, num_shards)}
    if num_shards > 1:
        kinds["ranges through prefixes"] = cut_pieces(workload, order, num_shards, max_loss=np.inf)
    return _fastest(
        [
            _partition(workload, order, pieces, _ranges(pieces, num_shards), num_shards, name, is_mixed=False)
            for name, pieces in kinds.items()
        ]
    )


def cut_balanced(workload: Workload, order: Order, num_shards: int) -> Partition:
    """The best cut of a density order: each unit dealt to all shards, vector LPT over pieces, or the paper's dual scan.

    Two more are for jobs where these fall short: long outputs kept together, and pieces cut through shared prefixes.
    """
    pieces = cut_pieces(workload, order, num_shards)
    if num_shards == 1:
        return _partition(workload, order, pieces, np.zeros(len(pieces.unit), np.int64), 1, "whole", is_mixed=True)
    dealt = cut_pieces(workload, order, num_shards, per_unit=num_shards)
    fine = cut_pieces(workload, order, num_shards, max_loss=np.inf)
    candidates = [
        ("dealt", dealt, deal(dealt, num_shards, spread_units=True)),
        ("lpt", pieces, deal(pieces, num_shards)),
        ("dual-scan", pieces, dual_scan(pieces, num_shards)),
        ("by length", pieces, stratify(pieces, num_shards, workload.cost)),
        ("lpt through prefixes", fine, deal(fine, num_shards)),
    ]
    return _fastest([_partition(workload, order, p, shard, num_shards, name, is_mixed=True) for name, p, shard in candidates])


def _fastest(partitions: list[Partition]) -> Partition:
    slowest_s = np.array([partition.prediction.predicted_s.max() for partition in partitions])
    return partitions[int(np.argmax(slowest_s <= slowest_s.min() * (1 + TIE)))]


def _ranges(pieces: Pieces, num_shards: int) -> NDArray[np.int64]:
    """[P] shard of each piece, non-decreasing."""
    load = pieces.load.mean(axis=1)
    middle = (np.cumsum(load) - load / 2) / max(load.sum(), np.finfo(float).tiny)
    return np.minimum((middle * num_shards).astype(np.int64), num_shards - 1)


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
        best, least = 0, np.inf
        for candidate in range(num_shards):
            fullness = max(done[candidate, 0] + load[piece, 0], done[candidate, 1] + load[piece, 1])
            # Loads are shares of the whole job, so one more piece of a unit outweighs them.
            fullness += 2 * num_of_unit[candidate]
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
