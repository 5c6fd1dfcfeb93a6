"""KV tokens that cascade attention must read at least, whatever the schedule."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import kv_reads
from blendserve_core.plan.build_tree import subtree_sums
from blendserve_core.plan.tree import PrefixTree


def least_kv_reads(tree: PrefixTree, num_output_tokens: NDArray[Any], kv_capacity_tokens: int) -> float:
    """Least KV tokens read by decodes that read a shared segment once per step, for true outputs [R].

    A segment is read in every step in which a request below it decodes. Those are as many as its longest output has, or as
    many as it takes to read what its requests do not share, a full memory at a time.
    """
    outputs = num_output_tokens.astype(np.float64)
    is_shared = tree.num_requests_below[tree.node_of_request] > 1
    length = (tree.end_depth - tree.start_depth).astype(np.float64)
    own_reads = kv_reads(np.where(is_shared, 0.0, length[tree.node_of_request]), outputs)
    num_steps = np.maximum(_longest_below(tree, outputs), subtree_sums(tree, own_reads) / kv_capacity_tokens)
    shared = tree.num_requests_below > 1
    return float(own_reads.sum() + (length * num_steps)[shared].sum())


def _longest_below(tree: PrefixTree, outputs: NDArray[np.float64]) -> NDArray[np.float64]:
    longest = np.zeros(tree.num_nodes)
    np.maximum.at(longest, tree.node_of_request, outputs)
    _to_parents(longest, tree.parent)
    return longest


@numba.njit(cache=True)
def _to_parents(longest, parent):
    for node in range(len(parent) - 1, 0, -1):
        longest[parent[node]] = max(longest[parent[node]], longest[node])
