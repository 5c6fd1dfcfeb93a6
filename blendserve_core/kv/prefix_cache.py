"""The prefix cache. All requests are known beforehand, so the planned tree is its index: no hashing, no guessing.

A segment's pages stay while a request below it is unfinished; when memory is short, the idle segment whose next use is
farthest away goes first. ``kv`` is the :class:`KvArrays` everywhere.
"""

from __future__ import annotations

from blendserve_core.kv.arrays import NOT_WAITING, KvArrays
from blendserve_core.kv.block_lists import read
from blendserve_core.kv.compiled import compiled
from blendserve_core.kv.idle import add_idle, farthest_idle, remove_idle
from blendserve_core.kv.pages import hold_page, num_pages_for, release_page, release_pages

BUSY = -1


@compiled
def match(kv, request, step):
    """Longest cached prefix of a request: (tokens, segment whose tail can be copied or -1).

    (BUSY, -1) while another running request is computing the part it needs next.
    """
    num_tokens, tail_of = 0, -1
    for i in range(_walk(kv, request)):
        segment = kv.path[i]
        node = kv.segments[segment]
        if node.num_filled < node.end - node.start:
            if node.writer >= 0:
                return BUSY, -1
            return num_tokens + node.num_filled, tail_of if node.num_filled == 0 else -1
        if num_tokens < node.end:
            num_tokens, tail_of = node.end, -1
        if kv.tail_pages[segment] >= 0 and node.tail_step < step:
            tail_of = segment
    return num_tokens, tail_of


@compiled
def cached_pages(kv, request, pages):
    """Write the pages that are cached for a request to the front of ``pages``. Returns how many there are."""
    num_pages = 0
    for i in range(_walk(kv, request)):
        node = kv.segments[kv.path[i]]
        for k in range(num_pages_for(kv, node.num_filled)):
            pages[num_pages] = kv.segment_pages[node.first_page + k]
            num_pages += 1
    return num_pages


@compiled
def private_start(kv, request):
    """First token position of a request that lies in pages of its own, a multiple of the page size."""
    segment = kv.requests[request].segment
    return kv.segments[segment].end if segment >= 0 else 0


@compiled
def num_available_pages(kv):
    """Pages that are free, or hold only idle cache."""
    return kv.state[0].num_free + kv.state[0].num_idle_pages


@compiled
def enter(kv, request):
    """A request starts to run: its path is in use, and what is missing of it is this request's to compute."""
    for i in range(_walk(kv, request)):
        segment = kv.path[i]
        node = kv.segments[segment]
        if node.num_users == 0:
            remove_idle(kv, segment)
        node.num_users += 1
        if node.num_filled < node.end - node.start:
            node.writer = request
    kv.waiting_rank[kv.requests[request].position] = NOT_WAITING


@compiled
def leave(kv, request, is_finished):
    """A request stops to run. Finished, it releases its share of the path; retracted, the path stays cached for it."""
    segment = kv.requests[request].segment
    while segment >= 0:
        node = kv.segments[segment]
        node.num_users -= 1
        if node.writer == request:
            node.writer = -1
        if node.num_users == 0:
            add_idle(kv, segment)
        segment = node.parent
    if is_finished:
        finish(kv, request)
    else:
        kv.waiting_rank[kv.requests[request].position] = kv.requests[request].rank


@compiled
def finish(kv, request):
    """Nothing will be asked of the cache for this request any more."""
    kv.waiting_rank[kv.requests[request].position] = NOT_WAITING
    segment = kv.requests[request].segment
    while segment >= 0:
        node = kv.segments[segment]
        node.num_unfinished -= 1
        if node.num_unfinished == 0:
            _drop(kv, segment)
        elif node.idle_place >= 0:
            # Its next use may have changed.
            remove_idle(kv, segment)
            add_idle(kv, segment)
        segment = node.parent


@compiled
def forget(request, *arrays):
    """A waiting request will never run. ``arrays`` are those of a KvArrays."""
    finish(KvArrays(*arrays), request)


@compiled
def fill(kv, request, start, end, new_pages):
    """A request computes its tokens ``[start, end)``: those in shared segments get the first of ``new_pages``."""
    num_used = 0
    for i in range(_walk(kv, request)):
        segment = kv.path[i]
        node = kv.segments[segment]
        if node.end <= start or node.start >= end:
            continue
        num_held = num_pages_for(kv, node.num_filled)
        node.num_filled = min(end, node.end) - node.start
        for k in range(num_held, num_pages_for(kv, node.num_filled)):
            kv.segment_pages[node.first_page + k] = new_pages[num_used]
            num_used += 1
        if node.num_filled == node.end - node.start:
            node.writer = -1


@compiled
def remember_tails(kv, request, start, end, store, first_page_block, step):
    """A request computes ``[start, end)`` into the pages of its list; a segment tail that completes is copied later."""
    for i in range(_walk(kv, request)):
        segment = kv.path[i]
        node = kv.segments[segment]
        tail_end = node.end + node.num_tail_tokens
        is_wanted = node.num_tail_tokens > 0 and kv.tail_pages[segment] < 0 and node.num_unfinished > 1
        if is_wanted and start < tail_end <= end:
            page_number = node.end // kv.state[0].page_size
            read(store, first_page_block, page_number, page_number + 1, kv.tail_pages, segment)
            hold_page(kv, kv.tail_pages[segment])
            node.tail_step = step
            kv.state[0].num_tails += 1


@compiled
def evict(kv, num_pages):
    """Free idle segments, farthest next use first, until the pool has ``num_pages`` free. False if it cannot have them."""
    state = kv.state[0]
    while state.num_free < num_pages and state.num_idle > 0:
        _drop(kv, farthest_idle(kv))
    if state.num_free < num_pages and state.num_tails > 0:
        _drop_tails(kv)
    return state.num_free >= num_pages


@compiled
def _walk(kv, request):
    """Write the segments of a request into ``kv.path``, from the top down. Returns how many there are."""
    num_segments = 0
    segment = kv.requests[request].segment
    while segment >= 0:
        num_segments += 1
        segment = kv.segments[segment].parent
    segment = kv.requests[request].segment
    for i in range(num_segments - 1, -1, -1):
        kv.path[i] = segment
        segment = kv.segments[segment].parent
    return num_segments


@compiled
def _drop(kv, segment):
    node = kv.segments[segment]
    assert node.num_users == 0, "a segment in use is dropped"
    remove_idle(kv, segment)
    release_pages(kv, kv.segment_pages, node.first_page, node.first_page + num_pages_for(kv, node.num_filled))
    node.num_filled = 0
    _drop_tail(kv, segment)


@compiled
def _drop_tails(kv):
    """The last resort: tails of segments in use, in pages that only they still hold."""
    segment = 0
    while kv.state[0].num_tails > 0:
        _drop_tail(kv, segment)
        segment += 1


@compiled
def _drop_tail(kv, segment):
    if kv.tail_pages[segment] >= 0:
        release_page(kv, kv.tail_pages[segment])
        kv.tail_pages[segment] = -1
        kv.state[0].num_tails -= 1
