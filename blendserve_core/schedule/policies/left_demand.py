"""KV memory that the compute-intensive side needs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.schedule.policies.request_times import RequestTimes


class LeftDemand:
    """KV that requests hold while they arrive at a rate of prompt tokens per step.

    Little's law: at one prompt token per step they hold, per prompt token of theirs, what they read over their lives.
    """

    def __init__(self, times: RequestTimes) -> None:
        self._times = times
        self.follow(np.empty(0, dtype=np.int64))

    def follow(self, order: NDArray[np.int64]) -> None:
        """From now on, positions are those of this order."""
        own = self._times.num_own_tokens[order].astype(np.float64)
        self._own = np.concatenate([[0.0], np.cumsum(own)])
        self._held = np.concatenate([[0.0], np.cumsum(own + self._times.kv_reads[order])])

    def kv_tokens(self, num_prefill_tokens: int, position: int, window: int) -> float:
        """KV held at ``num_prefill_tokens`` per step by requests like the ``window`` next ones from ``position`` on."""
        end = min(position + window, len(self._own) - 1)
        num_own = self._own[end] - self._own[position]
        return float(num_prefill_tokens * (self._held[end] - self._held[position]) / num_own) if num_own > 0 else 0.0
