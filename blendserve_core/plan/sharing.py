"""How many prompt tokens an order saves: each request shares what it has in common with the one before it."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from blendserve_core.plan.tree import PrefixTree

BLOCK = 32


def shared_in_tree_order(tree: PrefixTree) -> NDArray[np.int32]:
    """[R] tokens that request ``request_order[i]`` shares with ``request_order[i - 1]``, 0 for the first."""
    # Neighbours in one node have equal prompts; where nodes start at a request, the topmost hangs off the common ancestor.
    shared = tree.end_depth[tree.node_of_request[tree.request_order]]
    starts_here = tree.request_start < len(shared)
    # Written from the last node to the first, so that the topmost node's depth stays.
    shared[tree.request_start[starts_here][::-1]] = tree.start_depth[starts_here][::-1]
    return shared


def shared_with_previous(tree: PrefixTree, order: NDArray[np.int64]) -> NDArray[np.int32]:
    """[K] prompt tokens each request of ``order`` (distinct request indices) shares with the one before it, 0 for the first.

    This is what a cache saves that keeps only the path of the last request: computed from the tree, not from token ids.
    """
    position = np.empty(len(tree.request_order), np.int64)
    position[tree.request_order] = np.arange(len(position))
    shared = shared_in_tree_order(tree)
    return _range_minima(shared, _block_minima(shared), position[order])


def shared_within(tree: PrefixTree, order: NDArray[np.int64], part: NDArray[np.int64]) -> NDArray[np.int32]:
    """[K] the same where ``order`` consists of parts that share nothing: ``part`` [K] is non-decreasing."""
    shared = shared_with_previous(tree, order)
    shared[np.flatnonzero(np.diff(part)) + 1] = 0
    return shared


def sharing_ratio(tree: PrefixTree, order: NDArray[np.int64], num_prompt_tokens: NDArray[np.int32]) -> float:
    """Share of the prompt tokens in ``order`` that need no computing, 0 where there are none."""
    total = int(num_prompt_tokens[order].sum(dtype=np.int64))
    return float(shared_with_previous(tree, order).sum(dtype=np.int64)) / total if total else 0.0


def shared_by_others(tree: PrefixTree, requests: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """[K] prompt tokens that each of ``requests`` [K] shares with its nearest relatives, and [K] how many they are, with it.

    The longest prefix that anyone else has too: cascade attention groups the requests of a step by it.
    """
    num_below = tree.num_requests_below
    node = tree.node_of_request[requests]
    # A node of one request is a leaf, and others go through its parent (all of them, where that is the root).
    node = np.where(num_below[node] > 1, node, np.maximum(tree.parent[node], 0))
    return tree.end_depth[node], num_below[node]


@njit(cache=True)
def _block_minima(values):
    """[levels, blocks] sparse table: entry (l, b) is the minimum over the blocks ``[b, b + 2**l)``."""
    num_blocks = max(1, (len(values) + BLOCK - 1) // BLOCK)
    num_levels = 1
    while (1 << num_levels) <= num_blocks:
        num_levels += 1
    table = np.full((num_levels, num_blocks), np.int32(2**31 - 1), np.int32)
    for i in range(len(values)):
        table[0, i // BLOCK] = min(table[0, i // BLOCK], values[i])
    for level in range(1, num_levels):
        half = 1 << (level - 1)
        for block in range(num_blocks - half):
            table[level, block] = min(table[level - 1, block], table[level - 1, block + half])
    return table


@njit(cache=True)
def _range_minima(values, table, positions):
    """For consecutive positions p, q: the least of ``values`` over (min(p, q), max(p, q)]."""
    minima = np.zeros(len(positions), np.int32)
    for i in range(1, len(positions)):
        p, q = positions[i - 1], positions[i]
        minima[i] = _range_minimum(values, table, min(p, q) + 1, max(p, q) + 1)
    return minima


@njit(cache=True)
def _range_minimum(values, table, start, stop):
    first_block, last_block = (start + BLOCK - 1) // BLOCK, stop // BLOCK
    if first_block >= last_block:
        return values[start:stop].min()
    level = 0
    while (2 << level) <= last_block - first_block:
        level += 1
    lowest = min(table[level, first_block], table[level, last_block - (1 << level)])
    for i in range(start, first_block * BLOCK):
        lowest = min(lowest, values[i])
    for i in range(last_block * BLOCK, stop):
        lowest = min(lowest, values[i])
    return lowest
