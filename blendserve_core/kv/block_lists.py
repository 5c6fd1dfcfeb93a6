"""Lists of integers that grow at their ends, kept in blocks of one store: no list moves when it grows, or when the store does.

A list is its first and last block and a length, which its owner keeps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blendserve_core.kv.compiled import compiled

BLOCK = 32
"""Numbers in a block: two cache lines."""


class BlockStore(NamedTuple):
    """values [num_blocks, BLOCK] int32; next_block [num_blocks] int32, of lists and of the free ones; free [2] int64: the first
    free block and how many there are."""

    values: NDArray[np.int32]
    next_block: NDArray[np.int32]
    free: NDArray[np.int64]


def empty_store(num_blocks: int) -> BlockStore:
    next_block = np.arange(1, num_blocks + 1, dtype=np.int32)
    return BlockStore(np.zeros((num_blocks, BLOCK), dtype=np.int32), next_block, np.array([0, num_blocks]))


def doubled(store: BlockStore) -> BlockStore:
    """The same lists in a store of twice as many blocks."""
    num_blocks = len(store.values)
    bigger = empty_store(2 * num_blocks)
    bigger.values[:num_blocks] = store.values
    bigger.next_block[:num_blocks] = store.next_block
    bigger.next_block[-1] = store.free[0]
    bigger.free[:] = num_blocks, store.free[1] + num_blocks
    return bigger


@compiled
def append(store, last_block, length, value):
    """Append to a list of ``length`` numbers. Returns its last block, which of an empty list is the first one too."""
    if length % BLOCK == 0:
        assert store.free[1] > 0, "no block is free"
        block = np.int32(store.free[0])
        store.free[0] = store.next_block[block]
        store.free[1] -= 1
        if length > 0:
            store.next_block[last_block] = block
        last_block = block
    store.values[last_block, length % BLOCK] = value
    return last_block


@compiled
def read(store, first_block, start, end, out, out_start):
    """Copy numbers ``[start, end)`` of a list into ``out[out_start:]``."""
    block = first_block
    for _ in range(start // BLOCK):
        block = store.next_block[block]
    for i in range(start, end):
        out[out_start + i - start] = store.values[block, i % BLOCK]
        if i % BLOCK == BLOCK - 1:
            block = store.next_block[block]


@compiled
def discard(store, first_block, last_block, length):
    """Give all blocks of a list back."""
    if length > 0:
        store.next_block[last_block] = store.free[0]
        store.free[0] = first_block
        store.free[1] += (length + BLOCK - 1) // BLOCK
