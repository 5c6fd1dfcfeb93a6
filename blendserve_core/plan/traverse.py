"""Depth-first orders of a tree whose siblings are sorted by a key."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from blendserve_core.plan.tree import PrefixTree


def depth_first_order(tree: PrefixTree, sibling_key: NDArray) -> NDArray[np.int64]:
    """[R] requests depth first, a node's own before its children's, siblings by increasing ``sibling_key`` [N]."""
    order = np.lexsort((sibling_key, tree.parent))
    start = _request_starts(tree.parent, tree.num_requests_below, _num_own_requests(tree), order)
    position = np.empty(len(tree.request_order), np.int64)
    node = tree.node_of_request[tree.request_order]
    # Requests of one node keep their distance from its first.
    position[start[node] + np.arange(len(node)) - tree.request_start[node]] = tree.request_order
    return position


def layer_wise_order(tree: PrefixTree, density: NDArray[np.float64]) -> NDArray[np.int64]:
    """[R] requests depth first with compute-intensive siblings left (paper section 5.3)."""
    return depth_first_order(tree, -density)


def shuffled_order(tree: PrefixTree, seed: int) -> NDArray[np.int64]:
    """[R] requests depth first with siblings at random, so that neighbours' lengths are unrelated."""
    return depth_first_order(tree, np.random.default_rng(seed).random(tree.num_nodes))


def _num_own_requests(tree: PrefixTree) -> NDArray[np.int64]:
    return np.bincount(tree.node_of_request, minlength=tree.num_nodes)


@njit(cache=True)
def _request_starts(parent, num_below, num_own, order):
    """Position of each node's first request; ``order`` lists siblings together, in the order they are to be visited."""
    offset = np.zeros(len(parent), np.int64)
    taken = num_own.copy()
    for node in order:
        if node > 0:
            offset[node] = taken[parent[node]]
            taken[parent[node]] += num_below[node]
    for node in range(1, len(parent)):
        offset[node] += offset[parent[node]]
    return offset
