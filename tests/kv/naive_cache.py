"""The prefix cache once more, as plain Python: what the compiled one must do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.kv.arrays import NOT_WAITING
from blendserve_core.kv.segments import Segments


class NaivePool:
    """Hands out page numbers 0..num_pages-1. A page goes back to the pool when its last holder releases it."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = np.arange(num_pages - 1, -1, -1, dtype=np.int32)
        self._num_free = num_pages
        self._num_holders = np.zeros(num_pages, dtype=np.int32)

    @property
    def num_free(self) -> int:
        return self._num_free

    def allocate(self, num_pages: int) -> NDArray[np.int32]:
        """Take ``num_pages`` pages, each with one holder. The caller has checked ``num_free``."""
        assert 0 <= num_pages <= self._num_free, f"{num_pages} pages asked, {self._num_free} free"
        self._num_free -= num_pages
        pages = self._free[self._num_free : self._num_free + num_pages][::-1].copy()
        self._num_holders[pages] = 1
        return pages

    def hold(self, page: int) -> None:
        """Add a holder to a page that has one."""
        assert self._num_holders[page] > 0, f"page {page} is free"
        self._num_holders[page] += 1

    def release(self, pages: NDArray[np.int32]) -> None:
        """Drop one holder of each page (distinct pages); those without a holder become free."""
        left = self._num_holders[pages] - 1
        assert (left >= 0).all(), "a page was released twice"
        self._num_holders[pages] = left
        freed = pages[left == 0]
        self._free[self._num_free : self._num_free + len(freed)] = freed[::-1]
        self._num_free += len(freed)


@dataclass(frozen=True, slots=True)
class NaiveMatch:
    """What the cache holds for a request: ``num_tokens`` in ``pages``, and then, if ``tail_page`` >= 0, ``num_tail_tokens``
    more that are copied from that page into the first page of the request's own."""

    num_tokens: int
    pages: NDArray[np.int32]
    tail_page: int
    num_tail_tokens: int


class NaiveCache:
    """Owns the pages of shared segments. ``rank[request]`` is a request's place in the planned order (NOT_WAITING outside it),
    from which the next use of a segment is known."""

    def __init__(
        self, segments: Segments, pool: NaivePool, page_size: int, request_order: NDArray[np.int64], rank: NDArray[np.int64]
    ) -> None:
        self._segments = segments
        self._pool = pool
        self._page_size = page_size
        num_segments = segments.num_segments
        self._num_filled = np.zeros(num_segments, dtype=np.int32)
        self._num_users = np.zeros(num_segments, dtype=np.int32)
        self._num_unfinished = segments.num_requests.copy()
        self._writer = np.full(num_segments, -1, dtype=np.int64)
        self._tail_page = np.full(num_segments, -1, dtype=np.int32)
        self._tail_step = np.zeros(num_segments, dtype=np.int64)
        self._page_indptr = np.concatenate([[0], np.cumsum((segments.end - segments.start) // page_size, dtype=np.int64)])
        self._pages = np.full(self._page_indptr[-1], -1, dtype=np.int32)
        self._idle: set[int] = set()
        self.num_idle_pages = 0
        self._position_of = np.empty(len(request_order), dtype=np.int64)
        self._position_of[request_order] = np.arange(len(request_order))
        self._rank = rank
        self._waiting_rank = rank[request_order]

    def private_start(self, request: int) -> int:
        """First token position of a request that lies in pages of its own, a multiple of the page size."""
        segment = self._segments.of_request[request]
        return int(self._segments.end[segment]) if segment >= 0 else 0

    def segment_of(self, request: int) -> int:
        """Deepest segment of a request, -1 without one."""
        return int(self._segments.of_request[request])

    def match(self, request: int, step: int) -> NaiveMatch | None:
        """Longest cached prefix of a request, or None while another running request is computing the part it needs next."""
        path = self._path(request)
        num_tokens, tail_of = 0, -1
        for segment in path:
            num_filled = int(self._num_filled[segment])
            if num_filled < self._length(segment):
                if self._writer[segment] >= 0:
                    return None
                num_tokens += num_filled
                tail_of = tail_of if num_filled == 0 else -1
                break
            if num_tokens < self._segments.end[segment]:
                num_tokens, tail_of = int(self._segments.end[segment]), -1
            if self._tail_page[segment] >= 0 and self._tail_step[segment] < step:
                tail_of = segment
        return NaiveMatch(
            num_tokens=num_tokens,
            pages=self._filled_pages(path),
            tail_page=int(self._tail_page[tail_of]) if tail_of >= 0 else -1,
            num_tail_tokens=int(self._segments.num_tail_tokens[tail_of]) if tail_of >= 0 else 0,
        )

    def enter(self, request: int) -> None:
        """A request starts to run: its path is in use, and what is missing of it is this request's to compute."""
        for segment in self._path(request):
            if self._num_users[segment] == 0:
                self._set_idle(segment, False)
            self._num_users[segment] += 1
            if self._num_filled[segment] < self._length(segment):
                self._writer[segment] = request
        self._waiting_rank[self._position_of[request]] = NOT_WAITING

    def leave(self, request: int, *, is_finished: bool) -> None:
        """A request stops to run. Finished, it releases its share of the path; retracted, the path stays cached for it."""
        for segment in reversed(self._path(request)):
            self._num_users[segment] -= 1
            if self._writer[segment] == request:
                self._writer[segment] = -1
            if self._num_users[segment] == 0:
                self._set_idle(segment, True)
        if is_finished:
            self.finish(request)
        else:
            self._waiting_rank[self._position_of[request]] = self._rank[request]

    def finish(self, request: int) -> None:
        """Nothing will be asked of the cache for this request any more."""
        self._waiting_rank[self._position_of[request]] = NOT_WAITING
        for segment in reversed(self._path(request)):
            self._num_unfinished[segment] -= 1
            if self._num_unfinished[segment] == 0:
                self._drop(segment)

    def fill(self, request: int, start: int, end: int, new_pages: NDArray[np.int32]) -> None:
        """A request computes its tokens ``[start, end)``: those in shared segments get the first of ``new_pages``."""
        num_used = 0
        for segment in self._path(request):
            if self._segments.end[segment] <= start or self._segments.start[segment] >= end:
                continue
            first = self._page_indptr[segment] + self._num_pages_held(segment)
            num_filled = int(min(end, self._segments.end[segment]) - self._segments.start[segment])
            self._num_filled[segment] = num_filled
            num_new = self._page_indptr[segment] + self._num_pages_held(segment) - first
            self._pages[first : first + num_new] = new_pages[num_used : num_used + num_new]
            num_used += int(num_new)
            if num_filled == self._length(segment):
                self._writer[segment] = -1

    def remember_tails(self, request: int, start: int, end: int, page_row: NDArray[np.int32], step: int) -> None:
        """A request computes ``[start, end)`` into ``page_row``; a segment tail that completes is copied later."""
        for segment in self._path(request):
            num_tail = self._segments.num_tail_tokens[segment]
            tail_end = self._segments.end[segment] + num_tail
            is_wanted = num_tail > 0 and self._tail_page[segment] < 0 and self._num_unfinished[segment] > 1
            if is_wanted and start < tail_end <= end:
                page = int(page_row[self._segments.end[segment] // self._page_size])
                self._pool.hold(page)
                self._tail_page[segment] = page
                self._tail_step[segment] = step

    def evict(self, num_pages: int) -> bool:
        """Free idle segments, farthest next use first, until the pool has ``num_pages`` free. False if it cannot have them."""
        while self._pool.num_free < num_pages and self._idle:
            self._drop(max(self._idle, key=lambda segment: (self._next_use(segment), segment)))
        if self._pool.num_free < num_pages:
            self._drop_tails()
        return self._pool.num_free >= num_pages

    def _next_use(self, segment: int) -> int:
        # A parent is used no later than its children and has the smaller number, so children go first.
        positions = slice(self._segments.position_start[segment], self._segments.position_end[segment])
        return int(self._waiting_rank[positions].min())

    def _path(self, request: int) -> list[int]:
        """Segments of a request from the top down."""
        path = []
        segment = int(self._segments.of_request[request])
        while segment >= 0:
            path.append(segment)
            segment = int(self._segments.parent[segment])
        return path[::-1]

    def _length(self, segment: int) -> int:
        return int(self._segments.end[segment] - self._segments.start[segment])

    def _num_pages_held(self, segment: int) -> int:
        return -(-int(self._num_filled[segment]) // self._page_size)

    def _pages_of(self, segment: int) -> NDArray[np.int32]:
        first = self._page_indptr[segment]
        return self._pages[first : first + self._num_pages_held(segment)]

    def _filled_pages(self, path: list[int]) -> NDArray[np.int32]:
        return np.concatenate([np.empty(0, dtype=np.int32), *map(self._pages_of, path)])

    def _set_idle(self, segment: int, is_idle: bool) -> None:
        num_pages = self._num_pages_held(segment)
        if is_idle and num_pages > 0:
            self._idle.add(segment)
            self.num_idle_pages += num_pages
        elif segment in self._idle:
            self._idle.remove(segment)
            self.num_idle_pages -= num_pages

    def _drop(self, segment: int) -> None:
        assert self._num_users[segment] == 0, f"segment {segment} is in use"
        self._set_idle(segment, False)
        self._pool.release(self._pages_of(segment))
        self._num_filled[segment] = 0
        self._drop_tail(segment)

    def _drop_tails(self) -> None:
        """The last resort: tails of segments in use, in pages that only they still hold."""
        for segment in np.flatnonzero(self._tail_page >= 0).tolist():
            self._drop_tail(segment)

    def _drop_tail(self, segment: int) -> None:
        if self._tail_page[segment] >= 0:
            self._pool.release(self._tail_page[segment : segment + 1])
            self._tail_page[segment] = -1
