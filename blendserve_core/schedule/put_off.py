"""Requests that wait with tokens they already have: retracted ones, and those that an earlier run began."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.schedule.outcome import Finished


@dataclass(frozen=True, slots=True)
class Begun:
    """What is kept of a request that does not run.

    outputs [n] int32, its tokens so far;  num_cached, prompt tokens found in the cache when it first ran, -1: it never did here
    """

    outputs: NDArray[np.int32]
    num_cached: int

    @property
    def has_run(self) -> bool:
        return self.num_cached >= 0


NOT_BEGUN = Begun(np.empty(0, dtype=np.int32), -1)


class PutOff:
    """The scheduler's store of them; ``outputs_so_far`` are the tokens of an earlier run, by request."""

    def __init__(self, outputs_so_far: dict[int, NDArray[np.int32]]) -> None:
        self._begun = {request: Begun(outputs, -1) for request, outputs in outputs_so_far.items()}

    def of(self, request: int) -> Begun:
        return self._begun.get(request, NOT_BEGUN)

    def keep(self, ended: Finished) -> None:
        """What was retracted is kept as if it had finished."""
        self._begun[ended.request] = Begun(ended.token_ids, ended.num_cached_tokens)

    def drop(self, request: int) -> None:
        """It runs, or will never run again."""
        self._begun.pop(request, None)

    def outputs(self) -> dict[int, NDArray[np.int32]]:
        """The tokens of each, by request."""
        return {request: begun.outputs for request, begun in self._begun.items()}
