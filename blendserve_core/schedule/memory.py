"""Pages for the running sequences: shared prefixes come from the cache, everything else is a sequence's own."""

from __future__ import annotations

from dataclasses import replace

import numba
import numpy as np
from numpy.typing import NDArray

from blendserve_core.kv.pages import PagePool
from blendserve_core.kv.prefix_cache import Match, PrefixCache
from blendserve_core.kv.segments import Segments
from blendserve_core.schedule.running import Running


class Memory:
    """Owns the page pool and the prefix cache; gives rows of ``Running`` their pages and takes them back."""

    def __init__(
        self,
        segments: Segments,
        request_order: NDArray[np.int64],
        rank: NDArray[np.int64],
        num_pages: int,
        page_size: int,
    ) -> None:
        self.page_size = page_size
        self._pool = PagePool(num_pages)
        self._cache = PrefixCache(segments, self._pool, page_size, request_order, rank)
        self._copies: list[tuple[int, int, int]] = []

    @property
    def num_available_pages(self) -> int:
        """Pages that are free, or hold only idle cache."""
        return self._pool.num_free + self._cache.num_idle_pages

    @property
    def copies(self) -> NDArray[np.int32]:
        """[num_copies, 3] source page, destination page and number of tokens to copy before the step."""
        return np.array(self._copies, dtype=np.int32).reshape(-1, 3)

    def release_copy_sources(self) -> None:
        """The step has run: pages that were copied from need not be kept for that any more."""
        for source, _, _ in self._copies:
            self._pool.release(np.array([source], dtype=np.int32))
        self._copies = []

    def num_pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def pin(self, request: int, num_tokens: int, step: int) -> Match | None:
        """Find what is cached for a request of ``num_tokens``, and keep it from eviction.

        None while another sequence is computing it. Where memory is so short that a tail's page may itself be needed, the
        match comes without its tail.
        """
        match = self._cache.match(request, step)
        if match is None:
            return None
        self._cache.enter(request)
        if match.tail_page < 0:
            return match
        if self.num_available_pages <= self.num_pages_for(num_tokens + 1) - len(match.pages):
            return replace(match, tail_page=-1, num_tail_tokens=0)
        self._pool.hold(match.tail_page)
        return match

    def unpin(self, request: int, match: Match) -> None:
        self._cache.leave(request, is_finished=False)
        if match.tail_page >= 0:
            self._pool.release(np.array([match.tail_page], dtype=np.int32))

    def can_hold(self, num_pages: int) -> bool:
        """Whether ``num_pages`` more can be had now; evicts idle cache for them."""
        return self._cache.evict(num_pages)

    def seat(self, running: Running, row: int, match: Match) -> None:
        """Put a pinned request's cached pages into its page table."""
        request = int(running.seq_ids[row])
        running.first_private_page[row] = self._cache.private_start(request) // self.page_size
        running.prefix_nodes[row] = self._cache.segment_of(request)
        running.num_pages[row] = len(match.pages)
        running.reserve(num_pages=len(match.pages))
        running.page_table[running.slots[row], : len(match.pages)] = match.pages

    def copy_tail(self, running: Running, row: int, match: Match) -> None:
        """Have the cached part of a page copied into the first page of the row's own; until then it stays pinned."""
        own_page = int(running.page_table[running.slots[row], len(match.pages)])
        self._copies.append((match.tail_page, own_page, match.num_tail_tokens))

    def grow(self, running: Running, rows: NDArray[np.int64]) -> bool:
        """Make room for one more token in each row, or in none if pages are short."""
        needy = rows[running.num_computed[rows] // self.page_size >= running.num_pages[rows]]
        if not self._cache.evict(len(needy)):
            return False
        if len(needy):
            running.reserve(num_pages=int(running.num_pages[needy].max()) + 1)
            _append_pages(running.page_table, running.slots, running.num_pages, needy, self._pool.allocate(len(needy)))
        return True

    def extend(self, running: Running, row: int, start: int, num_new: int, step: int) -> int:
        """Make room for up to ``num_new`` tokens after those a row has computed; returns for how many there are pages.

        ``start`` is where the row's part of the pages begins: its computed tokens, less a tail that is being copied.
        """
        num_computed, num_pages = int(running.num_computed[row]), int(running.num_pages[row])
        num_missing = max(0, self.num_pages_for(num_computed + num_new) - num_pages)
        if not self._cache.evict(num_missing):
            num_missing = self._pool.num_free
            num_new = max(0, (num_pages + num_missing) * self.page_size - num_computed)
        running.reserve(num_pages=num_pages + num_missing)
        page_row = running.page_table[running.slots[row]]
        page_row[num_pages : num_pages + num_missing] = pages = self._pool.allocate(num_missing)
        running.num_pages[row] += num_missing
        request, end = int(running.seq_ids[row]), num_computed + num_new
        self._cache.fill(request, start, end, pages)
        self._cache.remember_tails(request, start, end, page_row, step)
        return num_new

    def free(self, running: Running, row: int, *, is_finished: bool) -> None:
        """Take back a row's own pages, and its hold on the shared ones."""
        own = running.page_table[running.slots[row], running.first_private_page[row] : running.num_pages[row]]
        self._pool.release(own)
        self._cache.leave(int(running.seq_ids[row]), is_finished=is_finished)

    def forget(self, request: int) -> None:
        """A waiting request will never run."""
        self._cache.finish(request)


@numba.njit(cache=True)
def _append_pages(page_table, slots, num_pages, rows, new_pages):
    for i in range(len(rows)):
        row = rows[i]
        page_table[slots[row], num_pages[row]] = new_pages[i]
        num_pages[row] += 1
