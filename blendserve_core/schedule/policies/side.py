"""Waiting requests of one side of the blend, in the order in which they should enter."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray


class Side:
    """An order with a cursor, and a queue for what comes back. Requests behind the cursor may be taken too; it skips them."""

    def __init__(self, num_requests: int) -> None:
        self._order = np.empty(0, dtype=np.int64)
        self._is_taken = np.empty(0, dtype=np.bool_)
        self._position = np.full(num_requests, -1, dtype=np.int64)
        self._cursor = 0
        self._num_in_order = 0
        self._returned: deque[int] = deque()

    @property
    def num_waiting(self) -> int:
        return self._num_in_order + len(self._returned)

    @property
    def waiting(self) -> NDArray[np.int64]:
        """What waits, in order, without what came back."""
        return self._order[self._cursor :][~self._is_taken[self._cursor :]]

    @property
    def returned(self) -> tuple[int, ...]:
        """What came back, next one first."""
        return tuple(self._returned)

    @property
    def position(self) -> int:
        """Where the cursor stands in the last order that was added, with what waited before it."""
        return self._cursor

    def add(self, order: NDArray[np.int64]) -> None:
        """More requests, behind those that wait."""
        self._order = np.concatenate([self.waiting, order])
        self._is_taken = np.zeros(len(self._order), dtype=np.bool_)
        self._position[self._order] = np.arange(len(self._order))
        self._cursor, self._num_in_order = 0, len(self._order)

    def peek(self) -> int | None:
        """The next request, or None when none waits."""
        if self._returned:
            return self._returned[0]
        return int(self._order[self._cursor]) if self._num_in_order else None

    def ahead(self, num_skipped: int) -> int | None:
        """The request ``num_skipped`` places behind the cursor, None past the end or where it was taken."""
        position = self._cursor + num_skipped
        if position >= len(self._order) or self._is_taken[position]:
            return None
        return int(self._order[position])

    def take(self, request: int) -> int:
        """Take a request that waits."""
        if self._returned and self._returned[0] == request:
            return self._returned.popleft()
        self._num_in_order -= 1
        self._is_taken[self._position[request]] = True
        while self._cursor < len(self._order) and self._is_taken[self._cursor]:
            self._cursor += 1
        return request

    def put_back(self, request: int) -> None:
        """A request returns to the front."""
        self._returned.appendleft(request)
