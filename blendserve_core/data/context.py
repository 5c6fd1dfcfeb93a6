"""Prompts that leave no room for an output in the model's context: that row's error, or cut where the user asks for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.data.row_error import RowError
from schemas.parameters import OnTooLong


def fit_context(
    lens: NDArray[np.int64],
    token_ids: NDArray[np.int32],
    max_tokens: NDArray[np.int64],
    max_context_tokens: int,
    on_too_long: OnTooLong,
) -> tuple[NDArray[np.int64], NDArray[np.int32], dict[int, RowError]]:
    """Lengths [num_rows] and the flat token ids of prompts that fit, and the errors of those that do not.

    A prompt is too long where not one output token fits behind it. Cut at its left or right, it leaves room for the row's
    ``max_tokens``, but keeps at least half of the context.
    """
    is_long = lens >= max_context_tokens
    if not is_long.any():
        return lens, token_ids, {}
    if on_too_long == "error":
        errors = {int(row): _too_long(int(lens[row]), max_context_tokens) for row in np.flatnonzero(is_long)}
        return np.where(is_long, 0, lens), token_ids[~np.repeat(is_long, lens)], errors
    kept = np.where(is_long, max_context_tokens - np.minimum(max_tokens, max_context_tokens // 2), lens)
    position = np.arange(len(token_ids)) - np.repeat(np.cumsum(lens) - lens, lens)
    is_kept = position < np.repeat(kept, lens)
    if on_too_long == "truncate-left":
        is_kept = position >= np.repeat(lens - kept, lens)
    return kept, token_ids[is_kept], {}


def _too_long(num_tokens: int, max_context_tokens: int) -> RowError:
    return RowError(
        "context_length_exceeded",
        f"the prompt has {num_tokens} tokens, and at least one output token must fit the context of {max_context_tokens}; "
        "--on-too-long truncate-left or truncate-right cuts such prompts",
    )
