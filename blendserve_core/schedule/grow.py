"""Pages for what runs already: one more token for every decode, and the next part of every begun prompt.

The last arguments are a :class:`KvArrays`, then what :attr:`Running.arrays` gives, flat: that is what crosses into compiled
code fastest.
"""

from __future__ import annotations

from blendserve_core.kv.arrays import KvArrays
from blendserve_core.kv.compiled import compiled, compiled_inline
from blendserve_core.kv.pages import num_pages_for, take_page
from blendserve_core.kv.prefix_cache import evict, fill, remember_tails
from blendserve_core.schedule.running import append_page, is_complete, num_remaining, unpack

NUM_KV_ARRAYS = len(KvArrays._fields)


@compiled
def unpack_all(arrays):
    running, store = unpack(arrays[NUM_KV_ARRAYS:])
    return KvArrays(*arrays[:NUM_KV_ARRAYS]), running, store


@compiled
def grow_decodes(num_running, *arrays):
    """One new token for each row with one to go, none for the others. Returns (decodes, KV tokens that they read).

    (-1, 0), and no new tokens, if pages are short.
    """
    kv, running, store = unpack_all(arrays)
    num_needed = 0
    for row in range(num_running):
        running.num_new[row] = num_remaining(running, row) == 1 and not is_complete(running, row)
        if running.num_new[row] and _is_full(kv, running, row):
            num_needed += 1
    if not evict(kv, num_needed):
        running.num_new[:num_running] = 0
        return -1, 0
    num_decodes = num_tokens_read = 0
    for row in range(num_running):
        if running.num_new[row]:
            num_decodes += 1
            num_tokens_read += running.num_computed[row]
            if _is_full(kv, running, row):
                append_page(running, store, row, take_page(kv))
    return num_decodes, num_tokens_read


@compiled_inline
def _is_full(kv, running, row):
    return running.num_computed[row] // kv.state[0].page_size >= running.rows[row].num_pages


@compiled
def continue_prefills(num_running, budget, step, *arrays):
    """Go on with prompts that were begun, oldest first. Returns (budget left, tokens that no step has taken yet)."""
    kv, running, store = unpack_all(arrays)
    num_promised = 0
    for row in range(num_running):
        if is_complete(running, row):
            continue
        remaining = num_remaining(running, row)
        if running.num_new[row] == 0 and budget > 0:
            num_new = min(remaining, budget)
            running.num_new[row] = extend(kv, running, store, row, running.num_computed[row], num_new, step)
            budget -= running.num_new[row]
        num_promised += remaining - running.num_new[row]
    return budget, num_promised


@compiled
def extend(kv, running, store, row, start, num_new, step):
    """Make room for up to ``num_new`` tokens after those a row has computed; returns for how many there are pages.

    ``start`` is where the row's part of the pages begins: its computed tokens, less a tail that is being copied.
    """
    num_computed, num_pages = running.num_computed[row], running.rows[row].num_pages
    num_missing = max(0, num_pages_for(kv, num_computed + num_new) - num_pages)
    if not evict(kv, num_missing):
        num_missing = kv.state[0].num_free
        num_new = max(0, (num_pages + num_missing) * kv.state[0].page_size - num_computed)
    for i in range(num_missing):
        kv.scratch[i] = take_page(kv)
        append_page(running, store, row, kv.scratch[i])
    request, end = running.seq_ids[row], num_computed + num_new
    fill(kv, request, start, end, kv.scratch)
    remember_tails(kv, request, start, end, store, running.rows[row].first_page_block, step)
    return num_new
