"""Compute, memory and density of every node of the tree, in a few array passes (paper sections 4 and 5.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import density as compute_density
from blendserve_core.plan.arrays import sums_before
from blendserve_core.plan.build_tree import subtree_sums
from blendserve_core.plan.workload import Workload


@dataclass(frozen=True, slots=True)
class NodeCosts:
    """Costs under a tree's nodes. N = nodes, R = requests; seconds in float64.

    decode_s        [R] compute of a request's output tokens
    memory_s        [R] KV reads of a request's decodes; with cascade its part of what it reads with others
    segment_s       [N] compute of a node's own tokens, once
    subtree_s       [N] compute below and in a node with every shared segment once, without the path to it
    path_s          [N] compute of the path to a node, its own tokens excluded
    subtree_memory_s [N]
    """

    decode_s: NDArray[np.float64]
    memory_s: NDArray[np.float64]
    segment_s: NDArray[np.float64]
    subtree_s: NDArray[np.float64]
    path_s: NDArray[np.float64]
    subtree_memory_s: NDArray[np.float64]

    @property
    def density(self) -> NDArray[np.float64]:
        """[N] (1 - s) * Comp / Mem with s the sharing inside the subtree; the path to it is computed once."""
        return compute_density(self.path_s + self.subtree_s, self.subtree_memory_s)

    @property
    def density_on_path(self) -> NDArray[np.float64]:
        """[N] the same where the path is cached already: what a subtree adds beside its siblings."""
        return compute_density(self.subtree_s, self.subtree_memory_s)


def node_costs(workload: Workload) -> NodeCosts:
    tree, cost = workload.tree, workload.cost
    requests = np.arange(len(tree.request_order))
    decode_s = workload.compute_s(requests, workload.num_prompt_tokens)
    memory_s = workload.memory_s(requests)
    segment_s = np.asarray(cost.compute_s(tree.end_depth, 0, tree.start_depth), np.float64)
    before = sums_before(segment_s)
    return NodeCosts(
        decode_s=decode_s,
        memory_s=memory_s,
        segment_s=segment_s,
        subtree_s=before[tree.subtree_end] - before[:-1] + subtree_sums(tree, decode_s),
        path_s=np.asarray(cost.compute_s(tree.start_depth, 0, 0), np.float64),
        subtree_memory_s=subtree_sums(tree, memory_s),
    )
