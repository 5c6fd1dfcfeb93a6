"""What may move between shards: the plan sets some units of each shard aside, in packages that whoever is idle may take."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.plan.order import Order
from blendserve_core.plan.plan import FIXED
from blendserve_core.plan.sharing import shared_with_previous
from blendserve_core.plan.workload import Workload

NUM_PACKAGES = 8
MOVABLE_SHARE = 0.3
"""Share of a shard's work, giants aside, that may move: about what estimates of a shard's time are wrong by."""

MAX_OUTPUT_RATIO = 2.0
"""Units with outputs longer than this many times the mean stay where they are: started late, they would be the tail."""

GOLDEN_RATIO = 0.6180339887498949


def packages(workload: Workload, order: Order, num_shards: int) -> NDArray[np.int32]:
    """[U] package of each unit of one shard's order: 0 is fixed, 1..NUM_PACKAGES may move, the last ones first.

    The movable units are spread evenly over the order, so that what is fixed and each package keep the shard's density. A
    single shard has nobody to share with.
    """
    num_units = len(order.unit_indptr) - 1
    package = np.full(num_units, FIXED, dtype=np.int32)
    if num_shards == 1 or num_units < 2:
        return package
    work, outputs = _work_and_outputs(workload, order)
    candidates = np.flatnonzero(outputs <= MAX_OUTPUT_RATIO * workload.estimates.mean_tokens.mean())
    # A low-discrepancy sequence: any stretch of it is spread over the whole order.
    candidates = candidates[np.argsort((np.arange(len(candidates)) * GOLDEN_RATIO) % 1.0, kind="stable")]
    limit = MOVABLE_SHARE * float(work[candidates].sum())
    candidates = candidates[work[candidates] <= limit / 2]
    before = np.cumsum(work[candidates]) - work[candidates]
    is_movable = before + work[candidates] <= limit
    number = (before[is_movable] / limit * NUM_PACKAGES).astype(np.int32)
    # Where units are large some numbers have none; packages are numbered without gaps.
    package[candidates[is_movable]] = 1 + np.unique(number, return_inverse=True)[1]
    return package


def _work_and_outputs(workload: Workload, order: Order) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[U] predicted seconds of each unit, both resources alike, and the mean output tokens of its requests."""
    requests, starts = order.order, order.unit_indptr[:-1]
    shared = shared_with_previous(workload.tree, requests)
    compute_s, memory_s = workload.compute_s(requests, shared), workload.memory_s(requests)
    seconds = compute_s / max(compute_s.sum(), 1e-300) + memory_s / max(memory_s.sum(), 1e-300)
    outputs = workload.estimates.mean_tokens[requests].astype(np.float64)
    return np.add.reduceat(seconds, starts), np.add.reduceat(outputs, starts) / np.diff(order.unit_indptr)
