"""Which subtrees to take apart so that requests of like density stand together, under a bound on lost sharing (section 5.3).

A node that is opened hands its parts (each child's subtree, and its own requests) to groups of like density. The groups go to
different places of the order, so the path down to the node is computed once per group instead of once. Nodes are opened in
the order of density spread per token of that loss, until nothing is left to sort or every further split costs more than is
left of the budget.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from blendserve_core.perf.cost import density
from blendserve_core.plan.arrays import sum_by, sums_before
from blendserve_core.plan.node_costs import NodeCosts
from blendserve_core.plan.tree import PrefixTree

GROUP_WIDTH = 0.35
"""Requests whose log densities differ by no more (a factor of 1.4) count as alike."""

MAX_LOG_DENSITY = 16.0
MAX_GROUPS = 128
"""More than the groups of that width that fit between the bounds of the log density."""


@dataclass(frozen=True, slots=True)
class Split:
    """Where the tree is cut.

    is_open     [N] whether a node's parts are separate
    width       [N] width of its groups in log density, 0 where closed
    unit_key    [N] the unit of a node's own requests; a closed subtree is whole in one unit
    lost_tokens upper bound on the sharing lost; budget_tokens is what could have been
    """

    is_open: NDArray[np.bool_]
    width: NDArray[np.float64]
    unit_key: NDArray[np.int64]
    lost_tokens: int
    budget_tokens: int


def split_tree(tree: PrefixTree, costs: NodeCosts, num_prompt_tokens: NDArray[np.int32], keep_sharing: float) -> Split:
    """Cut the tree into units, losing at most ``1 - keep_sharing`` of the prompt tokens that a perfect order saves."""
    nodes = node_densities(tree, costs)
    max_saved = int(num_prompt_tokens.sum(dtype=np.int64)) - tree.num_unique_tokens
    budget = int((1 - keep_sharing) * max_saved)
    is_open, width, lost = _open_nodes(nodes, budget)
    return Split(is_open, width, _unit_keys(nodes, is_open, width), int(lost), budget)


class NodeDensities(NamedTuple):
    """What decides where to cut, all [N]; a tuple, so that compiled functions take it. Densities are logarithms.

    parent, subtree_end, end_depth  as in the tree
    part             density of a subtree beside its siblings, the path to it cached
    own              density of a node's own requests, nan where it has none
    lowest, highest  least and greatest ``own`` in the subtree
    disorder         squared deviations of ``own`` from the subtree's mean, weighted by seconds of work and summed
    """

    parent: NDArray[np.int32]
    subtree_end: NDArray[np.int32]
    end_depth: NDArray[np.int32]
    part: NDArray[np.float64]
    own: NDArray[np.float64]
    lowest: NDArray[np.float64]
    highest: NDArray[np.float64]
    disorder: NDArray[np.float64]


def node_densities(tree: PrefixTree, costs: NodeCosts) -> NodeDensities:
    node, size = tree.node_of_request, tree.num_nodes
    num_own = np.bincount(node, minlength=size)
    memory_s = sum_by(node, costs.memory_s, size)
    share = num_own / np.maximum(tree.num_requests_below, 1)
    compute_s = sum_by(node, costs.decode_s, size) + costs.segment_s * share
    own = np.where(num_own > 0, _clipped_log(density(compute_s, memory_s)), np.nan)
    lowest, highest = _extremes(tree.parent, own)
    part = _clipped_log(costs.density_on_path)
    disorder = _disorder(tree, np.nan_to_num(own), np.where(num_own > 0, compute_s + memory_s, 0.0))
    return NodeDensities(tree.parent, tree.subtree_end, tree.end_depth, part, own, lowest, highest, disorder)


def _disorder(tree: PrefixTree, value: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    w, wx, wxx = (_below(tree, weight * value**power) for power in (0, 1, 2))
    return np.maximum(wxx - np.divide(wx * wx, w, out=np.zeros(len(w)), where=w > 0), 0.0)


def _below(tree: PrefixTree, values: NDArray[np.float64]) -> NDArray[np.float64]:
    before = sums_before(values)
    return before[tree.subtree_end] - before[:-1]


def _clipped_log(densities: NDArray[np.float64]) -> NDArray[np.float64]:
    bound = np.exp(MAX_LOG_DENSITY)
    return np.log(np.clip(densities, 1 / bound, bound))


@njit(cache=True)
def _extremes(parent, own):
    lowest, highest = np.full(len(own), np.inf), np.full(len(own), -np.inf)
    for node in range(len(own) - 1, -1, -1):
        if not np.isnan(own[node]):
            lowest[node], highest[node] = min(lowest[node], own[node]), max(highest[node], own[node])
        if node > 0:
            up = parent[node]
            lowest[up], highest[up] = min(lowest[up], lowest[node]), max(highest[up], highest[node])
    return lowest, highest


@njit(cache=True)
def _open_nodes(nodes, budget):
    is_open, width = np.zeros(len(nodes.parent), np.bool_), np.zeros(len(nodes.parent))
    left = budget
    heap = [(-1.0, 0)]
    while len(heap) > 0 and _is_unlike(nodes, 0):
        node = heapq.heappop(heap)[1]
        loss, group_width = _cheapest_split(nodes, node, left)
        if loss > left:
            continue
        left -= loss
        is_open[node], width[node] = True, group_width
        child = node + 1
        while child < nodes.subtree_end[node]:
            if _is_unlike(nodes, child):
                heapq.heappush(heap, (-nodes.disorder[child] / (nodes.end_depth[child] + nodes.end_depth[node]), child))
            child = nodes.subtree_end[child]
    return is_open, width, budget - left


@njit(cache=True)
def _is_unlike(nodes, node):
    return nodes.highest[node] - nodes.lowest[node] > GROUP_WIDTH


@njit(cache=True)
def _cheapest_split(nodes, node, budget):
    """Finest groups whose loss is within the budget, else the coarsest; (loss, width)."""
    # The node leaves its group of siblings, so even a single group computes the parent's path anew.
    leaving = 0 if node == 0 else nodes.end_depth[nodes.parent[node]]
    width = GROUP_WIDTH
    while True:
        num_groups = _num_groups(nodes, node, width)
        loss = leaving + max(num_groups - 1, 0) * nodes.end_depth[node]
        if loss <= budget or num_groups <= 2:
            return loss, width
        width *= 2


@njit(cache=True)
def _num_groups(nodes, node, width):
    seen = np.zeros(MAX_GROUPS, np.bool_)
    if not np.isnan(nodes.own[node]):
        seen[_group(nodes.own[node], width)] = True
    child = node + 1
    while child < nodes.subtree_end[node]:
        seen[_group(nodes.part[child], width)] = True
        child = nodes.subtree_end[child]
    return seen.sum()


@njit(cache=True)
def _group(log_density, width):
    return int((log_density + MAX_LOG_DENSITY) / width)


@njit(cache=True)
def _key(host, log_density, width):
    """Groups of the finest width are the same for all opened nodes: putting them together loses no sharing."""
    if width == GROUP_WIDTH:
        host = 0
    return host * MAX_GROUPS + _group(log_density, width)


@njit(cache=True)
def _unit_keys(nodes, is_open, width):
    """Unit of each node's own requests; a closed subtree is whole in one of its opened parent's groups."""
    key = np.zeros(len(is_open), np.int64)
    for node in range(len(is_open)):
        up = nodes.parent[node]
        if is_open[node]:
            if not np.isnan(nodes.own[node]):
                key[node] = _key(node, nodes.own[node], width[node])
        elif up >= 0 and is_open[up]:
            key[node] = _key(up, nodes.part[node], width[up])
        elif up >= 0:
            key[node] = key[up]
    return key
