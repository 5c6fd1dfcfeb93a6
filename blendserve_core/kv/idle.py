"""Idle segments: those with pages and without users, and which of them is needed last.

``idle`` is a binary heap of the segments whose next use is known, followed by those whose next use nobody has asked for yet:
most become busy again before memory is short.
"""

from __future__ import annotations

from blendserve_core.kv.compiled import compiled, compiled_inline
from blendserve_core.kv.pages import num_pages_for


@compiled
def add_idle(kv, segment):
    """A segment has lost its last user; its next use is not known yet."""
    state, node = kv.state[0], kv.segments[segment]
    if node.num_filled > 0:
        node.idle_place = state.num_idle
        kv.idle[state.num_idle] = segment
        state.num_idle += 1
        state.num_idle_pages += num_pages_for(kv, node.num_filled)


@compiled
def remove_idle(kv, segment):
    """A segment is used or dropped, if it was idle. The last of the heap closes its gap, the last of all closes that one's."""
    state, node, idle, segments = kv.state[0], kv.segments[segment], kv.idle, kv.segments
    gap = node.idle_place
    if gap < 0:
        return
    node.idle_place = -1
    state.num_idle_pages -= num_pages_for(kv, node.num_filled)
    if gap < state.num_keyed:
        state.num_keyed -= 1
        if gap < state.num_keyed:
            _sift(idle, segments, idle[state.num_keyed], gap, state.num_keyed)
        gap = state.num_keyed
    state.num_idle -= 1
    if gap < state.num_idle:
        idle[gap] = idle[state.num_idle]
        segments[idle[gap]].idle_place = gap


@compiled
def farthest_idle(kv):
    """The idle segment that is needed last; of equals the one with the largest number."""
    state, idle, segments, waiting_rank = kv.state[0], kv.idle, kv.segments, kv.waiting_rank
    while state.num_keyed < state.num_idle:
        segment = idle[state.num_keyed]
        node = segments[segment]
        node.next_use = waiting_rank[node.position_start]
        for position in range(node.position_start + 1, node.position_end):
            node.next_use = min(node.next_use, waiting_rank[position])
        state.num_keyed += 1
        _sift(idle, segments, segment, state.num_keyed - 1, state.num_keyed)
    return idle[0]


@compiled
def _sift(idle, segments, segment, gap, num_keyed):
    """Fill a gap of the heap with a segment, and move whatever is in the wrong place then."""
    while gap > 0 and _is_later(segments, segment, idle[(gap - 1) // 2]):
        idle[gap] = idle[(gap - 1) // 2]
        segments[idle[gap]].idle_place = gap
        gap = (gap - 1) // 2
    while 2 * gap + 1 < num_keyed:
        child = 2 * gap + 1
        if child + 1 < num_keyed and _is_later(segments, idle[child + 1], idle[child]):
            child += 1
        if not _is_later(segments, idle[child], segment):
            break
        idle[gap] = idle[child]
        segments[idle[gap]].idle_place = gap
        gap = child
    idle[gap] = segment
    segments[segment].idle_place = gap


@compiled_inline
def _is_later(segments, segment, other):
    # A parent is used no later than its children and has the smaller number, so children go first.
    next_use, other_next_use = segments[segment].next_use, segments[other].next_use
    return next_use > other_next_use or (next_use == other_next_use and segment > other)
