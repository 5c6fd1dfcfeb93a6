"""When a sequence ends: end-of-sequence and stop tokens, the request's length limit, a stop string found in its text."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from blendserve_core.kv.compiled import compiled
from blendserve_core.requests import SamplingColumns
from blendserve_core.schedule.running import RunningArrays

FinishReason = Literal["stop", "length", "error"]

GOES_ON, STOP, LENGTH = 0, 1, 2
REASONS: dict[int, FinishReason] = {STOP: "stop", LENGTH: "length"}


class FinishRules:
    """Decides which of the just sampled tokens are their sequence's last."""

    def __init__(self, sampling: SamplingColumns, eos_token_ids: tuple[int, ...]) -> None:
        # Copies, because a memory-mapped column would be another type to compile for.
        self._rules = (
            np.array(eos_token_ids, dtype=np.int32),
            np.array(sampling.ignore_eos, dtype=np.bool_),
            np.array(sampling.stop_token_indptr, dtype=np.int64),
            np.array(sampling.stop_token_ids, dtype=np.int32),
        )

    def ends(
        self, running: RunningArrays, rows: NDArray[np.int64], token_ids: NDArray[np.int32], stopped: frozenset[int]
    ) -> tuple[NDArray[np.int64], list[FinishReason]]:
        """Rows that end and why. ``rows`` were sampled ``token_ids``, which are among their outputs already."""
        codes = _codes(rows, token_ids, *self._rules, *running)
        if stopped:
            codes[np.isin(running.seq_ids[rows], np.fromiter(stopped, dtype=np.int64))] = STOP
        ends = np.flatnonzero(codes)
        return rows[ends], [REASONS[code] for code in codes[ends].tolist()]


@compiled
def _codes(rows, token_ids, eos_token_ids, ignore_eos, stop_token_indptr, stop_token_ids, *arrays):
    running = RunningArrays(*arrays)
    codes = np.full(len(rows), GOES_ON, dtype=np.int8)
    for i in range(len(rows)):
        row, request = rows[i], running.seq_ids[rows[i]]
        own_stop_token_ids = stop_token_ids[stop_token_indptr[request] : stop_token_indptr[request + 1]]
        if token_ids[i] in own_stop_token_ids or (not ignore_eos[request] and token_ids[i] in eos_token_ids):
            codes[i] = STOP
        elif running.num_outputs[row] >= running.rows[row].max_outputs:
            codes[i] = LENGTH
    return codes
