"""Orders in which requests may enter, cut into schedulable units: the plain ones, and by density (paper section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import density
from blendserve_core.plan.arrays import sum_by
from blendserve_core.plan.node_costs import NodeCosts
from blendserve_core.plan.sharing import shared_in_tree_order, shared_within
from blendserve_core.plan.split import split_tree
from blendserve_core.plan.traverse import layer_wise_order, shuffled_order
from blendserve_core.plan.tree import PrefixTree
from blendserve_core.plan.workload import Workload

KEEP_SHARING = 0.99


@dataclass(frozen=True, slots=True)
class Order:
    """``order`` [K] request indices; ``unit_indptr`` [U + 1] CSR over it."""

    order: NDArray[np.int64]
    unit_indptr: NDArray[np.int64]


def first_come_order(num_requests: int) -> Order:
    """Table order; every request is a unit of its own."""
    return Order(np.arange(num_requests), np.arange(num_requests + 1))


def random_order(num_requests: int, seed: int) -> Order:
    return Order(np.random.default_rng(seed).permutation(num_requests), np.arange(num_requests + 1))


def depth_first_order(tree: PrefixTree) -> Order:
    """Tree order, which computes every shared prefix once; a unit ends where nothing is shared across."""
    return Order(tree.request_order, _indptr(np.flatnonzero(shared_in_tree_order(tree) == 0), len(tree.request_order)))


def density_order(workload: Workload, costs: NodeCosts, *, seed: int | None, keep_sharing: float = KEEP_SHARING) -> Order:
    """Units by non-increasing density, with at least ``keep_sharing`` of what a perfect depth-first order shares.

    Inside a unit requests stand depth first: layer-wise by density without a ``seed`` (the paper's order), else with siblings
    shuffled. Long outputs that enter one after another age together and want memory together; shuffled ones do not.
    """
    tree = workload.tree
    leaves = layer_wise_order(tree, costs.density) if seed is None else shuffled_order(tree, seed)
    split = split_tree(tree, costs, workload.num_prompt_tokens, keep_sharing)
    unit = np.unique(split.unit_key[tree.node_of_request], return_inverse=True)[1]
    order = leaves[np.argsort(unit[leaves], kind="stable")]
    densest_first = np.argsort(-unit_density(workload, order, unit[order]), kind="stable")
    rank = np.empty(len(densest_first), np.int64)
    rank[densest_first] = np.arange(len(rank))
    order = order[np.argsort(rank[unit[order]], kind="stable")]
    return Order(order, _indptr(np.flatnonzero(np.diff(rank[unit[order]], prepend=-1)), len(order)))


def unit_density(workload: Workload, order: NDArray[np.int64], unit: NDArray[np.int64]) -> NDArray[np.float64]:
    """[U] density of each unit with its own sharing; ``unit`` [K] is non-decreasing along ``order``, without gaps."""
    shared = shared_within(workload.tree, order, unit)
    return density(sum_by(unit, workload.compute_s(order, shared)), sum_by(unit, workload.memory_s(order)))


def _indptr(starts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    return np.append(starts, size).astype(np.int64)
