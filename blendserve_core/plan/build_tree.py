"""From a request table to its prefix tree, by sorting (paper section 5.1). No Python object per node or request."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from blendserve_core.plan.arrays import sums_before
from blendserve_core.plan.sort import sort_sequences
from blendserve_core.plan.tree import PrefixTree
from blendserve_core.requests import RequestTable


def build_tree(requests: RequestTable) -> PrefixTree:
    """The compressed trie over all prompts. Token ids are only read, so they may be memory-mapped.

    Sorted neighbours share what their lowest common ancestor spans, so the sorted order and those shared lengths fix the
    tree. Requests that point at the same span of token ids (samples of one row) are compared once.
    """
    span_of_request, starts, lens = _distinct_spans(requests.prompt_start, requests.num_prompt_tokens)
    order, shared = sort_sequences(requests.token_ids, starts, lens)
    sorted_lens = lens[order]
    first, last, end_depth = _nodes_in_depth_first_order(shared, sorted_lens)
    parent = _parents(first, last)

    num_requests_before = sums_before(np.bincount(span_of_request, minlength=len(order))[order])
    node_of_sorted = np.searchsorted(first, np.arange(len(order)), side="right") - 1
    node_of_span = np.empty(len(order), np.int32)
    node_of_span[order] = node_of_sorted
    node_of_request = node_of_span[span_of_request]
    return PrefixTree(
        parent=parent,
        start_depth=np.where(parent < 0, 0, end_depth[parent]).astype(np.int32),
        end_depth=end_depth,
        subtree_end=_subtree_ends(first, last),
        request_order=np.argsort(node_of_request, kind="stable").astype(np.int64),
        request_start=num_requests_before[first],
        request_end=num_requests_before[last],
        node_of_request=node_of_request,
    )


def subtree_sums(tree: PrefixTree, values: NDArray) -> NDArray:
    """[N] sum over the requests below each node of ``values`` [R] (float64, or int64 for integers)."""
    before = sums_before(values[tree.request_order])
    return before[tree.request_end] - before[tree.request_start]


def _distinct_spans(
    starts: NDArray[np.int64], lens: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Span of each request [R], and start and length of each distinct span [S]."""
    order = np.lexsort((lens, starts))
    is_new = np.ones(len(order), bool)
    is_new[1:] = (np.diff(starts[order]) != 0) | (np.diff(lens[order]) != 0)
    span_of_request = np.empty(len(order), np.int64)
    span_of_request[order] = np.cumsum(is_new) - 1
    representative = order[is_new]
    return span_of_request, starts[representative].astype(np.int64), lens[representative].astype(np.int32)


def _nodes_in_depth_first_order(
    shared: NDArray[np.int32], lens: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Range of sorted sequences [first, last) and path length of every node, parents before children."""
    first, last, end_depth = _nodes(shared, lens)
    order = np.lexsort((end_depth, first))
    return first[order], last[order], end_depth[order]


@njit(cache=True)
def _nodes(shared, lens):
    """Every node in the order in which its range of sequences closes; the open ones form a stack from the root down."""
    num_sequences = len(lens)
    first, last = np.empty(2 * num_sequences + 1, np.int64), np.empty(2 * num_sequences + 1, np.int64)
    end_depth = np.empty(2 * num_sequences + 1, np.int32)
    open_first, open_depth = np.empty(2 * num_sequences + 1, np.int64), np.empty(2 * num_sequences + 1, np.int32)
    open_first[0], open_depth[0] = 0, 0
    top, num_nodes = 0, 0
    for i in range(num_sequences + 1):
        branch_depth = shared[i] if i < num_sequences else -1
        start = i
        while top >= 0 and open_depth[top] > branch_depth:
            start = open_first[top]
            first[num_nodes], last[num_nodes], end_depth[num_nodes] = start, i, open_depth[top]
            num_nodes += 1
            top -= 1
        if i == num_sequences:
            break
        if open_depth[top] < branch_depth:
            top += 1
            open_first[top], open_depth[top] = start, branch_depth
        if lens[i] > branch_depth:
            top += 1
            open_first[top], open_depth[top] = i, lens[i]
    return first[:num_nodes], last[:num_nodes], end_depth[:num_nodes]


@njit(cache=True)
def _parents(first, last):
    parent = np.empty(len(first), np.int32)
    parent[0] = -1
    for node in range(1, len(first)):
        ancestor = node - 1
        while last[ancestor] <= first[node]:
            ancestor = parent[ancestor]
        parent[node] = ancestor
    return parent


def _subtree_ends(first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int32]:
    ends = np.searchsorted(first, last, side="left")
    ends[0] = len(first)
    return ends.astype(np.int32)
