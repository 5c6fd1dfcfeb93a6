"""The pool of KV pages: integers only; where a page's bytes lie is the executor's business.

A page goes back to the pool when its last holder releases it.
"""

from __future__ import annotations

from blendserve_core.kv.compiled import compiled


@compiled
def take_page(kv):
    """A free page, with one holder from now on. The caller has checked that there is one."""
    state = kv.state[0]
    assert state.num_free > 0, "no page is free"
    state.num_free -= 1
    page = kv.free_pages[state.num_free]
    kv.num_holders[page] = 1
    return page


@compiled
def hold_page(kv, page):
    """Add a holder to a page that has one."""
    assert kv.num_holders[page] > 0, "the page is free"
    kv.num_holders[page] += 1


@compiled
def release_page(kv, page):
    """Drop one holder of a page."""
    assert kv.num_holders[page] > 0, "a page was released twice"
    kv.num_holders[page] -= 1
    if kv.num_holders[page] == 0:
        state = kv.state[0]
        kv.free_pages[state.num_free] = page
        state.num_free += 1


@compiled
def release_pages(kv, pages, start, end):
    """Drop one holder of each of ``pages[start:end]``, so that the first of them is the next to be taken."""
    for i in range(end - 1, start - 1, -1):
        release_page(kv, pages[i])


@compiled
def num_pages_for(kv, num_tokens):
    page_size = kv.state[0].page_size
    return (num_tokens + page_size - 1) // page_size
