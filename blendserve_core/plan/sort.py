"""Sorting token sequences that lie in one flat array, and how much each shares with the one before it.

A multikey quicksort with cached keys: two tokens at a time are packed into one integer and partitioned three ways. Before keys
are loaded, the prefix that a whole range shares is skipped in one sequential read, so long shared prompts cost one pass each.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

TOKENS_PER_KEY = 2


def sort_sequences(
    token_ids: NDArray[np.int32], starts: NDArray[np.int64], lens: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Order of the sequences ``token_ids[starts[i] : starts[i] + lens[i]]``, and what neighbours in it share.

    Returns (order [S], shared [S]): ``shared[i]`` is the length of the longest common prefix of sequences ``order[i - 1]`` and
    ``order[i]``, 0 for the first. Token ids must be non-negative; the order of equal sequences is unspecified.
    """
    tokens = _read_only(token_ids)
    order = np.arange(len(starts), dtype=np.int64)
    _sort(tokens, starts, lens, order, np.empty(len(starts), np.uint64))
    return order, _shared_with_previous(tokens, starts[order], lens[order])


def _read_only(array: NDArray[np.int32]) -> NDArray[np.int32]:
    """A plain read-only view: memory maps and arrays then share one compiled function."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


@njit(cache=True)
def _common_prefix(tokens, a, b, known, limit):
    """Tokens shared by the sequences starting at ``a`` and ``b``, of which ``known`` are equal; at most ``limit``."""
    shared = known
    while shared < limit and tokens[a + shared] == tokens[b + shared]:
        shared += 1
    return shared


@njit(cache=True)
def _shared_with_previous(tokens, starts, lens):
    shared = np.zeros(len(starts), np.int32)
    for i in range(1, len(starts)):
        shared[i] = _common_prefix(tokens, starts[i - 1], starts[i], 0, min(lens[i - 1], lens[i]))
    return shared


@njit(cache=True)
def _sort(tokens, starts, lens, order, keys):
    """Sort ``order`` in place. A frame is a range of it, the depth it shares, and whether its keys are those of that depth."""
    # Ranges on the stack are disjoint and hold at least two sequences each, which bounds their number.
    frames = np.empty((len(order) // 2 + 3, 4), np.int64)
    frames[0] = (0, len(order), 0, 0)
    num_frames = 1
    while num_frames > 0:
        num_frames -= 1
        low, high, depth, has_keys = frames[num_frames]
        if high - low < 2:
            continue
        if not has_keys:
            depth = _load_keys(tokens, starts, lens, order, keys, low, high, depth)
        equal_low, equal_high = _partition(keys, order, low, high)
        num_frames = _push(frames, num_frames, low, equal_low, depth, 1)
        num_frames = _push(frames, num_frames, equal_high, high, depth, 1)
        # A key that ends in zero marks the end of the sequence: these are all equal.
        if keys[equal_low] & np.uint64(0xFFFFFFFF):
            num_frames = _push(frames, num_frames, equal_low, equal_high, depth + TOKENS_PER_KEY, 0)


@njit(cache=True)
def _push(frames, num_frames, low, high, depth, has_keys):
    if high - low < 2:
        return num_frames
    frames[num_frames] = (low, high, depth, has_keys)
    return num_frames + 1


@njit(cache=True)
def _load_keys(tokens, starts, lens, order, keys, low, high, depth):
    """Skip what the whole range shares, then load each sequence's key there; returns the new depth."""
    first = order[low]
    shared = lens[first]
    for i in range(low + 1, high):
        if shared == depth:
            break
        other = order[i]
        shared = _common_prefix(tokens, starts[first], starts[other], depth, min(shared, lens[other]))
    for i in range(low, high):
        keys[i] = _key(tokens, starts[order[i]], lens[order[i]], shared)
    return shared


@njit(cache=True)
def _key(tokens, start, length, depth):
    """The tokens at ``depth`` and ``depth + 1``, each plus one, so that the end of a sequence sorts first."""
    key = np.uint64(0)
    if depth < length:
        key = np.uint64(tokens[start + depth] + 1) << np.uint64(32)
    if depth + 1 < length:
        key |= np.uint64(tokens[start + depth + 1] + 1)
    return key


@njit(cache=True)
def _partition(keys, order, low, high):
    """Three-way partition around a median of three; returns the range of keys equal to the pivot."""
    pivot = _median(keys[low], keys[(low + high) // 2], keys[high - 1])
    less, i, greater = low, low, high
    while i < greater:
        if keys[i] < pivot:
            _swap(keys, order, i, less)
            less += 1
            i += 1
        elif keys[i] > pivot:
            greater -= 1
            _swap(keys, order, i, greater)
        else:
            i += 1
    return less, greater


@njit(cache=True)
def _median(a, b, c):
    return max(min(a, b), min(max(a, b), c))


@njit(cache=True)
def _swap(keys, order, i, j):
    keys[i], keys[j] = keys[j], keys[i]
    order[i], order[j] = order[j], order[i]
