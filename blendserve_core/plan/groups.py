"""Groups of requests whose output lengths are believed alike: subtrees that share a prefix, and columns the user names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from blendserve_core.plan.tree import PrefixTree

MIN_GROUP_REQUESTS = 8
MAX_GROUP_DEPTH = 8
MAX_SHARE_OF_GROUP = 0.95


@dataclass(frozen=True, slots=True)
class Groups:
    """A hierarchy of groups. G = groups, R = requests.

    of_request [R] int32, the innermost group of each request
    parent     [G] int32, less than the group's own number; -1 for group 0, which holds all
    """

    of_request: NDArray[np.int32]
    parent: NDArray[np.int32]

    @property
    def num_groups(self) -> int:
        return len(self.parent)

    def sizes(self) -> NDArray[np.int64]:
        """[G] requests whose innermost group this is."""
        return np.bincount(self.of_request, minlength=self.num_groups)


def tree_groups(tree: PrefixTree, min_requests: int = MIN_GROUP_REQUESTS, max_depth: int = MAX_GROUP_DEPTH) -> Groups:
    """One group per subtree of at least ``min_requests`` requests, nested at most ``max_depth`` deep.

    A subtree that holds nearly all requests of its group founds none. Prompts that begin alike by chance make groups too: where
    their lengths do not differ, shrinkage undoes it.
    """
    group_of_node, parent = _number_groups(tree.parent, tree.num_requests_below, min_requests, max_depth)
    return _split_rest(Groups(group_of_node[tree.node_of_request], parent))


def column_groups(column: NDArray, inner: Groups) -> Groups:
    """Groups by a column's values [R], each divided further by ``inner``, whose own hierarchy is dropped."""
    values, value = np.unique(column, return_inverse=True)
    pairs, pair = np.unique(value.astype(np.int64) * inner.num_groups + inner.of_request, return_inverse=True)
    parent = np.concatenate([[-1], np.zeros(len(values)), 1 + pairs // inner.num_groups])
    return Groups((1 + len(values) + pair).astype(np.int32), parent.astype(np.int32))


def _split_rest(groups: Groups) -> Groups:
    """Requests that belong to a group but to none of its subgroups become a subgroup too, so that they are told apart."""
    has_own, has_subgroup = groups.sizes() > 0, np.zeros(groups.num_groups, bool)
    has_subgroup[groups.parent[1:]] = True
    mixed = np.flatnonzero(has_own & has_subgroup)
    rest = np.arange(groups.num_groups, dtype=np.int32)
    rest[mixed] = groups.num_groups + np.arange(len(mixed))
    return Groups(rest[groups.of_request], np.concatenate([groups.parent, mixed.astype(np.int32)]))


@njit(cache=True)
def _number_groups(node_parent, size, min_requests, max_depth):
    group, depth = np.zeros(len(size), np.int32), np.zeros(len(size), np.int32)
    parent, founder = np.empty(len(size), np.int32), np.empty(len(size), np.int64)
    parent[0], founder[0] = -1, 0
    num_groups = 1
    for node in range(1, len(size)):
        up = node_parent[node]
        group[node], depth[node] = group[up], depth[up]
        if size[node] >= min_requests and depth[up] < max_depth and size[node] <= MAX_SHARE_OF_GROUP * size[founder[group[up]]]:
            group[node], depth[node] = num_groups, depth[up] + 1
            parent[num_groups], founder[num_groups] = group[up], node
            num_groups += 1
    return group, parent[:num_groups].copy()
