"""What may move between shards: the plan puts units of each shard in packages, for whoever is idle to take.

Nobody knows beforehand how long the requests of a class will run. Those that decode long start first, each where memory is
free: started late, they would be the tail. The longest of all pins its rank to small steps until it ends, whatever else there
is to do, so nearly all of the compute-intensive work stays free for the ranks that have no such request any more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import density
from blendserve_core.plan.order import Order
from blendserve_core.plan.plan import FIXED
from blendserve_core.plan.sharing import shared_with_previous
from blendserve_core.plan.workload import Workload

NUM_PACKAGES = 8
MOVABLE_SHARE = 0.3
"""Share of a shard's work, giants aside, that may move where the policy keeps to its plan: about what estimates of a shard's
time are wrong by."""

STEERED_PACKAGES = 32
STEERED_SHARE = 0.9
"""The same where the policy steers both resources, and needs no more than some compute at hand."""

MAX_OUTPUT_RATIO = 2.0
"""Units with outputs longer than this many times the mean are no packages of the usual kind: they would come too late."""

MAX_EARLY_PACKAGES = 64
ROUNDING = 1e-9
GOLDEN_RATIO = 0.6180339887498949


def packages(workload: Workload, order: Order, num_shards: int, *, is_steered: bool) -> tuple[NDArray[np.int32], int]:
    """([U] package of each unit of one shard's order, how many are early); package 0 is fixed.

    Where the policy steers both resources (``is_steered``) the first packages are memory-intensive units, the most intensive
    first, and the rest of the order follows from its less dense end. Otherwise long outputs are fixed, and packages are spread
    evenly over the order, so that each keeps its density. A single shard has nobody to share with.
    """
    num_units = len(order.unit_indptr) - 1
    if num_shards == 1 or num_units < 2:
        return np.full(num_units, FIXED, dtype=np.int32), 0
    work, outputs, unit_density = _of_units(workload, order)
    if not is_steered:
        is_movable = outputs <= MAX_OUTPUT_RATIO * workload.estimates.mean_tokens.mean()
        return _cut(_spread(np.flatnonzero(is_movable)), work, MOVABLE_SHARE, NUM_PACKAGES), 0
    least_dense_first = np.arange(num_units)[::-1]
    is_early = unit_density[::-1] < 1.0
    early = _cut(least_dense_first[is_early], work, 1.0, MAX_EARLY_PACKAGES)
    late = _cut(least_dense_first[~is_early], work, STEERED_SHARE, STEERED_PACKAGES)
    num_early = int(early.max())
    return np.where(late > 0, num_early + late, early), num_early


def _spread(units: NDArray[np.int64]) -> NDArray[np.int64]:
    """By a low-discrepancy sequence: any stretch of it is spread over all."""
    return units[np.argsort((np.arange(len(units)) * GOLDEN_RATIO) % 1.0, kind="stable")]


def _cut(units: NDArray[np.int64], work: NDArray[np.float64], share: float, num_packages: int) -> NDArray[np.int32]:
    """[U] packages of about equal work, from 1, of the first ``share`` of ``units``; 0 for all other units."""
    package = np.full(len(work), FIXED, dtype=np.int32)
    limit = share * float(work[units].sum())
    if share < 1.0:
        units = units[work[units] <= limit / 2]
    before = np.cumsum(work[units]) - work[units]
    is_movable = before + work[units] <= limit * (1 + ROUNDING)
    number = (before[is_movable] / max(limit, 1e-300) * num_packages).astype(np.int32)
    # Where units are large some numbers have none; packages are numbered without gaps.
    package[units[is_movable]] = 1 + np.unique(number, return_inverse=True)[1]
    return package


def _of_units(workload: Workload, order: Order) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """[U] predicted seconds of each unit, both resources alike; mean output tokens of its requests; and its density."""
    requests, starts = order.order, order.unit_indptr[:-1]
    shared = shared_with_previous(workload.tree, requests)
    compute_s = np.add.reduceat(workload.compute_s(requests, shared), starts)
    memory_s = np.add.reduceat(workload.memory_s(requests), starts)
    seconds = compute_s / max(compute_s.sum(), 1e-300) + memory_s / max(memory_s.sum(), 1e-300)
    outputs = workload.estimates.mean_tokens[requests].astype(np.float64)
    mean_outputs = np.add.reduceat(outputs, starts) / np.diff(order.unit_indptr)
    return seconds, mean_outputs, density(compute_s, memory_s)
