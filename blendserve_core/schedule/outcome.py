"""What the scheduler reports: sequences that ended, and what it did so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.schedule.finish import FinishReason


@dataclass(frozen=True, slots=True)
class Finished:
    """A sequence that ended. ``finish_reason`` is stop, length or error; ``error`` says what went wrong, else empty."""

    request: int
    token_ids: NDArray[np.int32]
    finish_reason: FinishReason
    num_cached_tokens: int
    error: str = ""


@dataclass(slots=True)
class Counters:
    """What the scheduler did so far."""

    num_steps: int = 0
    num_computed_tokens: int = 0
    num_retractions: int = 0
    num_recomputed_tokens: int = 0
