"""One request's way in: what is cached for it, whether there is room, its row and first pages. Arguments as in ``grow.py``."""

from __future__ import annotations

from blendserve_core.kv.block_lists import read
from blendserve_core.kv.compiled import compiled
from blendserve_core.kv.pages import hold_page, num_pages_for, release_page
from blendserve_core.kv.prefix_cache import BUSY, cached_pages, enter, evict, leave, match, num_available_pages, private_start
from blendserve_core.schedule.grow import extend, unpack_all
from blendserve_core.schedule.running import append_page

ROWS_PER_RESERVED_PAGE = 8


@compiled
def admit(request, prompt_start, num_prompt, num_outputs, max_outputs, num_running, budget, num_promised, step, *arrays):
    """Make a request row ``num_running``, if its prompt and ``num_outputs`` earlier outputs fit beside ``num_promised`` tokens
    of begun ones and a reserve for the outputs of what runs.

    Returns (new tokens in this step, tokens found in the cache); no new tokens mean that it has to wait. The earlier outputs
    themselves are for the caller to append.
    """
    kv, running, store = unpack_all(arrays)
    num_matched, tail_page, num_tail = _pin(kv, request, num_prompt + num_outputs, step)
    if num_matched == BUSY:
        return 0, 0
    num_cached = num_matched + num_tail
    num_new = min(budget, num_prompt + num_outputs - num_cached)
    if not _has_room(kv, num_matched, num_cached + num_new, num_prompt + num_outputs, num_running, num_promised):
        _unpin(kv, request, tail_page)
        return 0, 0
    row = running.rows[num_running]
    row.prompt_start, row.num_prompt_tokens, row.max_outputs = prompt_start, num_prompt, max_outputs
    running.seq_ids[num_running] = request
    running.num_computed[num_running], running.num_outputs[num_running] = num_cached, 0
    _seat(kv, running, store, num_running, num_matched)
    running.num_new[num_running] = extend(kv, running, store, num_running, num_matched, num_new, step)
    assert running.num_new[num_running] == num_new, "tokens were promised pages and did not get them"
    if tail_page >= 0:
        _copy_tail(kv, running, store, num_running, num_matched, tail_page, num_tail)
    return num_new, num_cached


@compiled
def _pin(kv, request, num_known, step):
    """Find what is cached, and keep it from eviction: (tokens or BUSY, page of a tail to copy or -1, its tokens).

    Where memory is so short that a tail's page may itself be needed, the tail is left out.
    """
    num_matched, tail_of = match(kv, request, step)
    if num_matched == BUSY:
        return BUSY, -1, 0
    enter(kv, request)
    num_own_pages = num_pages_for(kv, num_known + 1) - num_pages_for(kv, num_matched)
    if tail_of < 0 or num_available_pages(kv) <= num_own_pages:
        return num_matched, -1, 0
    tail_page = kv.tail_pages[tail_of]
    hold_page(kv, tail_page)
    return num_matched, tail_page, kv.segments[tail_of].num_tail_tokens


@compiled
def _unpin(kv, request, tail_page):
    leave(kv, request, False)
    if tail_page >= 0:
        release_page(kv, tail_page)


@compiled
def _has_room(kv, num_matched, num_first, num_known, num_running, num_promised):
    """Whether all known tokens fit beside what was promised, and there are pages now for the first ones."""
    num_matched_pages = num_pages_for(kv, num_matched)
    num_pages = num_pages_for(kv, num_known + 1) - num_matched_pages
    num_reserved = num_promised // kv.state[0].page_size + num_running // ROWS_PER_RESERVED_PAGE
    fits = num_running == 0 or num_pages + num_reserved <= num_available_pages(kv)
    return fits and evict(kv, num_pages_for(kv, num_first) - num_matched_pages)


@compiled
def _seat(kv, running, store, row, num_matched):
    """Put the cached pages of a pinned request into its page list."""
    columns, request = running.rows[row], running.seq_ids[row]
    columns.prefix_node = kv.requests[request].segment
    columns.first_private_page = private_start(kv, request) // kv.state[0].page_size
    columns.num_pages = 0
    num_pages = cached_pages(kv, request, kv.scratch)
    for i in range(num_pages):
        append_page(running, store, row, kv.scratch[i])
    assert num_pages == num_pages_for(kv, num_matched), "a segment is cached without its parent"


@compiled
def _copy_tail(kv, running, store, row, num_matched, tail_page, num_tail):
    """Have the cached part of a page copied into the first page of the row's own; until then it stays held."""
    copy = kv.state[0].num_copies
    first_own = num_pages_for(kv, num_matched)
    kv.copies[0, copy], kv.copies[2, copy] = tail_page, num_tail
    read(store, running.rows[row].first_page_block, first_own, first_own + 1, kv.copies[1], copy)
    kv.state[0].num_copies += 1
