"""What can be cached: the parts of the prefix tree that several requests share, cut at page borders."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from blendserve_core.plan.tree import PrefixTree

MIN_TAIL_TOKENS = 4
"""Fewer tokens than this are computed again rather than kept track of."""

NEARLY_ALL = 0.95


@dataclass(frozen=True, slots=True)
class Segments:
    """Shared stretches of prompts in whole pages, in depth-first order. S = segments, R = requests of the table.

    Segment ``s`` is the tokens ``[start[s], end[s])`` of every prompt below it, both multiples of the page size; its parent
    ends where it starts. ``num_tail_tokens`` more tokens are shared too, but fill only part of a page (0..page_size-1), so
    they lie in the first page of whoever goes on from there, and can be copied from it. A segment may be empty but for such
    a tail.

    parent      [S] int32, -1 at the top
    start, end  [S] int32 tokens
    num_tail_tokens [S] int32
    num_requests    [S] int32 requests of this shard below it
    position_start, position_end  [S] int64 slice of the tree's request order
    of_request  [R] int32 deepest segment on a request's path, -1 without one
    """

    parent: NDArray[np.int32]
    start: NDArray[np.int32]
    end: NDArray[np.int32]
    num_tail_tokens: NDArray[np.int32]
    num_requests: NDArray[np.int32]
    position_start: NDArray[np.int64]
    position_end: NDArray[np.int64]
    of_request: NDArray[np.int32]

    @property
    def num_segments(self) -> int:
        return len(self.parent)


def shared_segments(tree: PrefixTree, requests: NDArray[np.int64], page_size: int) -> Segments:
    """Segments of ``tree`` that at least two of ``requests`` (a shard's, or what is left of it) share."""
    num_below, num_ending = _count_requests(tree, requests)
    stays_above = _stays_above(tree, num_below, num_ending)
    num_members = num_below - np.where(stays_above, num_ending, 0)
    # A request always computes its own last prompt token: its logits are wanted.
    shared_end = tree.end_depth - ((num_ending > 0) & ~stays_above)
    shared_end[num_members < 2] = 0
    is_segment, segment_of_node, parent_end = _find_segments(tree.parent, num_members, shared_end, page_size)
    end = shared_end // page_size * page_size
    nodes = np.flatnonzero(is_segment)
    parents = tree.parent[nodes]
    return Segments(
        parent=np.where(parents < 0, -1, segment_of_node[parents]).astype(np.int32),
        start=parent_end[nodes],
        end=end[nodes].astype(np.int32),
        num_tail_tokens=(shared_end - end)[nodes].astype(np.int32),
        num_requests=num_members[nodes].astype(np.int32),
        position_start=tree.request_start[nodes],
        position_end=tree.request_end[nodes],
        of_request=_segment_of_request(tree, segment_of_node, stays_above),
    )


def no_segments(num_requests: int) -> Segments:
    """Prefix sharing switched off: nothing is ever cached."""
    none32, none64 = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
    return Segments(none32, none32, none32, none32, none32, none64, none64, np.full(num_requests, -1, dtype=np.int32))


def _count_requests(tree: PrefixTree, requests: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Per node: how many of ``requests`` are below it, and how many of their prompts end in it."""
    is_ours = np.zeros(len(tree.request_order), dtype=np.int64)
    is_ours[requests] = 1
    cumulative = np.concatenate([[0], np.cumsum(is_ours[tree.request_order])])
    num_ending = np.bincount(tree.node_of_request[requests], minlength=tree.num_nodes)
    return cumulative[tree.request_end] - cumulative[tree.request_start], num_ending


def _stays_above(tree: PrefixTree, num_below: NDArray[np.int64], num_ending: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Per node: whether prompts that end in it share only what lies above it.

    Their last token cannot be shared, so else the node is a token shorter for all: that costs a token a request, this costs the
    node's length for each prompt that ends.
    """
    length = tree.end_depth - tree.start_depth
    return (num_ending > 0) & (num_ending * length < num_below)


def _segment_of_request(
    tree: PrefixTree, segment_of_node: NDArray[np.int32], stays_above: NDArray[np.bool_]
) -> NDArray[np.int32]:
    node = tree.node_of_request
    node = np.where(stays_above[node], tree.parent[node], node)
    return np.where(node < 0, -1, segment_of_node[node]).astype(np.int32)


@numba.njit(cache=True)
def _find_segments(parent, num_members, shared_end, page_size):
    """Per node: whether it is a segment, the number of the segment at or above it (-1 without one), and where its parent ends.

    Parents come before children. A node is one if it adds a whole page to the segment above, or a tail worth a copy, unless
    nearly all of its requests go on to a child with a longer tail.
    """
    num_nodes = len(parent)
    is_segment = np.zeros(num_nodes, dtype=np.bool_)
    nearest = np.full(num_nodes, -1, dtype=np.int32)
    parent_end = np.zeros(num_nodes, dtype=np.int32)
    shared_above = np.zeros(num_nodes, dtype=np.int32)
    most_go_on = _most_go_on(parent, num_members)
    num_segments = 0
    for node in range(num_nodes):
        above = parent[node]
        shared = shared_above[above] if above >= 0 else 0
        nearest[node] = nearest[above] if above >= 0 else -1
        parent_end[node] = shared // page_size * page_size
        adds_page = shared_end[node] // page_size > shared // page_size
        adds_tail = shared_end[node] - shared >= MIN_TAIL_TOKENS and not most_go_on[node]
        if adds_page or adds_tail:
            is_segment[node] = True
            nearest[node] = num_segments
            num_segments += 1
            shared = shared_end[node]
        shared_above[node] = shared
    return is_segment, nearest, parent_end


@numba.njit(cache=True)
def _most_go_on(parent, num_members):
    """Per node: whether one child has nearly all of its requests."""
    most_go_on = np.zeros(len(parent), dtype=np.bool_)
    for node in range(1, len(parent)):
        most_go_on[parent[node]] |= num_members[node] >= NEARLY_ALL * num_members[parent[node]]
    return most_go_on
