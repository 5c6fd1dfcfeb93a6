"""The compiled operations on KV memory as methods, for tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.kv import pages as page_ops
from blendserve_core.kv import prefix_cache as ops
from blendserve_core.kv.arrays import empty_kv
from blendserve_core.kv.block_lists import append, empty_store
from blendserve_core.kv.segments import Segments


@dataclass(frozen=True)
class Match:
    num_tokens: int
    pages: NDArray[np.int32]
    tail_page: int
    num_tail_tokens: int


class CompiledKv:
    """Pool and cache over one set of arrays. ``row`` of :meth:`remember_tails` are a request's pages in position order."""

    def __init__(
        self, segments: Segments, num_pages: int, page_size: int, request_order: NDArray[np.int64], rank: NDArray[np.int64]
    ) -> None:
        self.kv = empty_kv(segments, request_order, rank, num_pages=num_pages, page_size=page_size, max_copies=4)

    @property
    def num_free(self) -> int:
        return int(self.kv.state["num_free"][0])

    @property
    def num_idle_pages(self) -> int:
        return int(self.kv.state["num_idle_pages"][0])

    def allocate(self, num_pages: int) -> NDArray[np.int32]:
        return np.array([page_ops.take_page(self.kv) for _ in range(num_pages)], dtype=np.int32)

    def hold(self, page: int) -> None:
        page_ops.hold_page(self.kv, np.int32(page))

    def release(self, pages: NDArray[np.int32]) -> None:
        page_ops.release_pages(self.kv, np.ascontiguousarray(pages, dtype=np.int32), 0, len(pages))

    def match(self, request: int, step: int) -> Match | None:
        num_tokens, tail_of = ops.match(self.kv, request, step)
        if num_tokens == ops.BUSY:
            return None
        pages = np.empty(len(self.kv.free_pages), dtype=np.int32)
        num_pages = ops.cached_pages(self.kv, request, pages)
        tail_page = int(self.kv.tail_pages[tail_of]) if tail_of >= 0 else -1
        num_tail_tokens = int(self.kv.segments["num_tail_tokens"][tail_of]) if tail_of >= 0 else 0
        return Match(num_tokens, pages[:num_pages], tail_page, num_tail_tokens)

    def private_start(self, request: int) -> int:
        return ops.private_start(self.kv, request)

    def enter(self, request: int) -> None:
        ops.enter(self.kv, request)

    def leave(self, request: int, *, is_finished: bool) -> None:
        ops.leave(self.kv, request, is_finished)

    def finish(self, request: int) -> None:
        ops.finish(self.kv, request)

    def fill(self, request: int, start: int, end: int, new_pages: NDArray[np.int32]) -> None:
        ops.fill(self.kv, request, start, end, new_pages)

    def remember_tails(self, request: int, start: int, end: int, row: NDArray[np.int32], step: int) -> None:
        store, first, last = empty_store(len(row) + 1), 0, 0
        for length, page in enumerate(row):
            last = append(store, last, length, page)
        ops.remember_tails(self.kv, request, start, end, store, first, step)

    def evict(self, num_pages: int) -> bool:
        return ops.evict(self.kv, num_pages)
