"""The pool of KV pages: integers only; where a page's bytes lie is the executor's business."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class PagePool:
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
