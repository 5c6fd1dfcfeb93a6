"""Waiting requests in planned order, taken from either end: compute-intensive on the left, memory-intensive on the right."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

LEFT, RIGHT = 0, 1


class TwoEnds:
    """A sorted order with a cursor at each end (paper section 5.4), and a queue per side for what comes back.

    Retracted requests wait on their own side, so that a retracted giant does not block the compute side. Requests in the middle
    may be taken too; the cursors skip them later.
    """

    def __init__(self, order: NDArray[np.int64], num_requests: int) -> None:
        self._position = np.full(num_requests, -1, dtype=np.int64)
        self._returned: tuple[deque[int], deque[int]] = (deque(), deque())
        self.side = np.zeros(num_requests, dtype=np.int8)
        self._set_order(order)

    def add(self, order: NDArray[np.int64]) -> None:
        """Put more requests into the middle of those in order that wait."""
        left, right = self._ends
        waiting = self._order[left : right + 1][~self._is_taken[left : right + 1]]
        middle = len(waiting) // 2
        self._set_order(np.concatenate([waiting[:middle], order, waiting[middle:]]))

    @property
    def num_waiting(self) -> int:
        return self._num_in_order + len(self._returned[LEFT]) + len(self._returned[RIGHT])

    def peek(self, side: int) -> int | None:
        """The request that :meth:`take` would give for this side, or None when none waits there."""
        if self._returned[side]:
            return self._returned[side][0]
        left, right = self._ends
        if left > right:
            return None
        return int(self._order[self._ends[side]])

    def take(self, request: int, side: int) -> int:
        """Take a request that waits, for one side."""
        self.side[request] = side
        if self._returned[side] and self._returned[side][0] == request:
            return self._returned[side].popleft()
        self._num_in_order -= 1
        self._is_taken[self._position[request]] = True
        self._skip_taken()
        return request

    def put_back(self, request: int) -> None:
        """A request returns to the front of the side it was taken for."""
        self._returned[self.side[request]].appendleft(request)

    def _skip_taken(self) -> None:
        left, right = self._ends
        while left <= right and self._is_taken[left]:
            left += 1
        while right >= left and self._is_taken[right]:
            right -= 1
        self._ends = [left, right]

    def _set_order(self, order: NDArray[np.int64]) -> None:
        self._order = order
        self._num_in_order = len(order)
        self._ends = [0, len(order) - 1]
        self._is_taken = np.zeros(len(order), dtype=np.bool_)
        self._position[order] = np.arange(len(order))
