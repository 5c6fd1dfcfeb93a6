"""What sequences have written so far, as the steps feed it back in.

Every output token passes through a step before the next one is sampled, also when a retracted sequence is recomputed, so the
tokens at positions past the prompt are the whole history.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import StepPlan


def new_outputs(
    step: StepPlan, requests: RequestTable, is_followed: NDArray[np.bool_]
) -> Iterator[tuple[int, int, NDArray[np.int32]]]:
    """Each followed sequence of a step: its id, how many output tokens came before the step, and those that are in it.

    ``is_followed`` is [num_requests].
    """
    for i in np.flatnonzero(is_followed[step.seq_ids]).tolist():
        sequence = int(step.seq_ids[i])
        num_known = int(step.context_lens[i] - requests.num_prompt_tokens[sequence])
        tokens = step.token_ids[step.token_indptr[i] : step.token_indptr[i + 1]]
        yield sequence, max(num_known, 0), tokens[max(-num_known, 0) :]
