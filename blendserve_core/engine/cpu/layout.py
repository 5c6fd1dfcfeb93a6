"""Where a step's tokens stand: their positions in the sequence and their slots in the KV pool."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.schedule.step import StepPlan


def num_new_tokens(step: StepPlan) -> NDArray[np.int32]:
    """[S] tokens of each sequence in this step."""
    return np.diff(step.token_indptr)


def token_positions(step: StepPlan) -> NDArray[np.int32]:
    """[T] position of each new token in its sequence."""
    first = step.context_lens - step.token_indptr[:-1]
    return np.repeat(first, num_new_tokens(step)) + np.arange(step.num_tokens, dtype=np.int32)


def token_slots(step: StepPlan, positions: NDArray[np.int32], page_size: int) -> NDArray[np.int64]:
    """[T] slot (page * page_size + offset) that takes each new token's key and value."""
    first_page = np.repeat(step.page_indptr[:-1], num_new_tokens(step))
    pages = step.page_indices[first_page + positions // page_size]
    return pages.astype(np.int64) * page_size + positions % page_size
