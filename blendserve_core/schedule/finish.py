"""When a sequence ends: end-of-sequence and stop tokens, the request's length limit, a stop string found in its text."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from blendserve_core.requests import SamplingColumns

FinishReason = Literal["stop", "length", "error"]


class FinishRules:
    """Decides which of the just sampled tokens are their sequence's last."""

    def __init__(self, sampling: SamplingColumns, eos_token_ids: tuple[int, ...]) -> None:
        self._sampling = sampling
        self._eos_token_ids = eos_token_ids
        self._has_stop_tokens = bool(len(sampling.stop_token_ids))

    def reasons(
        self,
        seq_ids: NDArray[np.int64],
        token_ids: NDArray[np.int32],
        num_outputs: NDArray[np.int32],
        max_outputs: NDArray[np.int32],
        stopped: frozenset[int],
    ) -> dict[int, FinishReason]:
        """Finish reason by position in the arrays (one entry per sampled token), for those that end."""
        is_stop = np.zeros(len(token_ids), dtype=np.bool_)
        for eos_token_id in self._eos_token_ids:
            is_stop |= token_ids == eos_token_id
        is_stop &= ~self._sampling.ignore_eos[seq_ids]
        if self._has_stop_tokens:
            is_stop |= self._is_own_stop_token(seq_ids, token_ids)
        if stopped:
            is_stop |= np.isin(seq_ids, np.fromiter(stopped, dtype=np.int64))
        is_long = num_outputs >= max_outputs
        return {int(i): "stop" if is_stop[i] else "length" for i in np.flatnonzero(is_stop | is_long)}

    def _is_own_stop_token(self, seq_ids: NDArray[np.int64], token_ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        indptr, stop_token_ids = self._sampling.stop_token_indptr, self._sampling.stop_token_ids
        is_stop = np.zeros(len(seq_ids), dtype=np.bool_)
        for i in np.flatnonzero(indptr[seq_ids + 1] > indptr[seq_ids]):
            own = stop_token_ids[indptr[seq_ids[i]] : indptr[seq_ids[i] + 1]]
            is_stop[i] = token_ids[i] in own
        return is_stop
