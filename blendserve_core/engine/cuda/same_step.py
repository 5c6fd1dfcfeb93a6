"""Which sequences of a step read KV that others compute in this very step: a prefix that was begun and joined at once.

Layer by layer that is sound as long as keys and values are appended before they are read. A step that is cut in two appends
those of the second nano-batch after the first one has attended, so whoever reads must not stand before who writes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.engine.cpu.layout import num_new_tokens
from blendserve_core.schedule.step import StepPlan

Places = NDArray[np.int64]


def same_step_reads(step: StepPlan, page_size: int) -> tuple[Places, Places]:
    """Pairs of places in the step, [P] readers and [P] writers. Only pages of prompts are shared, so decodes write for none."""
    if not _may_write_for_others(step).any():
        none = np.empty(0, dtype=np.int64)
        return none, none
    sequence_of_page = np.repeat(np.arange(step.num_sequences), np.diff(step.page_indptr))
    places_in_sequence = np.arange(len(step.page_indices)) - step.page_indptr[sequence_of_page]
    is_written = places_in_sequence >= (step.context_lens // page_size)[sequence_of_page]
    writer_of_page = np.full(int(step.page_indices.max()) + 1, -1, dtype=np.int64)
    writer_of_page[step.page_indices[is_written]] = sequence_of_page[is_written]
    writers = writer_of_page[step.page_indices]
    is_read = (writers >= 0) & (writers != sequence_of_page)
    return sequence_of_page[is_read], writers[is_read]


def splits_no_read(order: Places, readers: Places, writers: Places) -> NDArray[np.bool_]:
    """[S] Whether ``order`` may be cut before its i-th place: no reader stands before the cut whose writer stands behind it."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    first, last = place[readers], place[writers]
    is_early = first < last
    num_open = np.zeros(len(order) + 1, dtype=np.int64)
    np.add.at(num_open, first[is_early] + 1, 1)
    np.add.at(num_open, last[is_early] + 1, -1)
    return np.cumsum(num_open)[:-1] == 0


def _may_write_for_others(step: StepPlan) -> NDArray[np.bool_]:
    """Sequences that do more than decode: their new tokens may be of the prompt."""
    return (num_new_tokens(step) > 1) | (step.num_outputs == 0) | ~step.is_sampled
