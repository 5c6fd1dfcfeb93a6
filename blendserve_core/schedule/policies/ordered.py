"""Admission in one planned order: first-come, depth-first and random differ only in the order they are given."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from blendserve_core.schedule.policy import Lacks, Load, StepOutcome


class OrderedAdmission:
    """Offers requests in the given order; those that come back are offered again first, the longest retracted before others."""

    def __init__(self, order: NDArray[np.int64]) -> None:
        self._order = order
        self._next = 0
        self._returned: deque[int] = deque()

    @property
    def num_waiting(self) -> int:
        return len(self._returned) + len(self._order) - self._next

    @property
    def lacks(self) -> Lacks:
        is_idle = self.num_waiting == 0
        return Lacks(is_idle, is_idle, is_idle)

    def add(self, order: NDArray[np.int64]) -> None:
        self._order = np.concatenate([self._order[self._next :], order])
        self._next = 0

    def prefill_budget(self, load: Load, max_prefill_tokens: int) -> int:
        return max_prefill_tokens

    def next(self, load: Load) -> int | None:
        if self._returned:
            return self._returned.popleft()
        if self._next == len(self._order):
            return None
        self._next += 1
        return int(self._order[self._next - 1])

    def to_retract(self, load: Load) -> list[int]:
        return []

    def put_back(self, request: int, *, retracted: bool) -> None:
        # The newest sequence is retracted first, so putting each one in front keeps them in order of admission.
        self._returned.appendleft(request)

    def observe(self, outcome: StepOutcome) -> None:
        pass
