"""Idle segments, and which of them is needed last.

``idle`` is a binary heap of the segments whose next use is known, followed by those whose next use nobody has asked for yet:
most become busy again before memory is short. While a segment is idle its next use changes only with :func:`forget_next_use`.
"""

from __future__ import annotations

import numba


@numba.njit(cache=True)
def add_idle(kv, segment):
    state = kv.state[0]
    _place(kv, segment, state.num_idle)
    state.num_idle += 1


@numba.njit(cache=True)
def remove_idle(kv, segment):
    """Take a segment out; the last of the heap closes its gap, the last of all closes that one's."""
    state = kv.state[0]
    gap = kv.segments[segment].idle_place
    kv.segments[segment].idle_place = -1
    if gap < state.num_keyed:
        state.num_keyed -= 1
        if gap < state.num_keyed:
            _place(kv, kv.idle[state.num_keyed], gap)
            _sift_down(kv, _sift_up(kv, gap))
        gap = state.num_keyed
    state.num_idle -= 1
    if gap < state.num_idle:
        _place(kv, kv.idle[state.num_idle], gap)


@numba.njit(cache=True)
def forget_next_use(kv, segment):
    """An idle segment's next use has changed."""
    remove_idle(kv, segment)
    add_idle(kv, segment)


@numba.njit(cache=True)
def farthest_idle(kv):
    """The idle segment that is needed last; of equals the one with the largest number."""
    state = kv.state[0]
    while state.num_keyed < state.num_idle:
        _find_next_use(kv, kv.segments[kv.idle[state.num_keyed]])
        state.num_keyed += 1
        _sift_up(kv, state.num_keyed - 1)
    return kv.idle[0]


@numba.njit(cache=True)
def _find_next_use(kv, node):
    waiting_rank = kv.waiting_rank
    next_use = waiting_rank[node.position_start]
    for position in range(node.position_start + 1, node.position_end):
        next_use = min(next_use, waiting_rank[position])
    node.next_use = next_use


@numba.njit(cache=True)
def _sift_up(kv, place):
    while place > 0 and _is_later(kv, place, (place - 1) // 2):
        _swap(kv, place, (place - 1) // 2)
        place = (place - 1) // 2
    return place


@numba.njit(cache=True)
def _sift_down(kv, place):
    num_keyed = kv.state[0].num_keyed
    while 2 * place + 1 < num_keyed:
        child = 2 * place + 1
        if child + 1 < num_keyed and _is_later(kv, child + 1, child):
            child += 1
        if not _is_later(kv, child, place):
            break
        _swap(kv, place, child)
        place = child


@numba.njit(cache=True)
def _is_later(kv, place, other_place):
    # A parent is used no later than its children and has the smaller number, so children go first.
    segment, other = kv.idle[place], kv.idle[other_place]
    next_use, other_next_use = kv.segments[segment].next_use, kv.segments[other].next_use
    return next_use > other_next_use or (next_use == other_next_use and segment > other)


@numba.njit(cache=True)
def _swap(kv, place, other_place):
    segment = kv.idle[place]
    _place(kv, kv.idle[other_place], place)
    _place(kv, segment, other_place)


@numba.njit(cache=True)
def _place(kv, segment, place):
    kv.idle[place] = segment
    kv.segments[segment].idle_place = place
