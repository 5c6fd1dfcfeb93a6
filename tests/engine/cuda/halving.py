"""A cut that takes every step of two sequences or more in two, whether that pays or not."""

from __future__ import annotations

import numpy as np

from blendserve_core.engine.cuda.cut import Cut
from blendserve_core.engine.cuda.same_step import same_step_reads
from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.overlap import OverlapRates
from blendserve_core.schedule.step import StepPlan


def cut_in_half(step: StepPlan, cost: CostModel, rates: OverlapRates, sm_choices: tuple[int, ...], page_size: int) -> Cut:
    """Every second sequence, but for those that read what the second half computes in this step."""
    is_first = np.arange(step.num_sequences) % 2 == 0
    readers, writers = same_step_reads(step, page_size)
    while (is_early := is_first[readers] & ~is_first[writers]).any():
        is_first[readers[is_early]] = False
    if step.num_sequences < 2 or not is_first.any():
        return Cut((np.arange(step.num_sequences),), 0, 1.0, 1.0, 2.0)
    return Cut((np.flatnonzero(is_first), np.flatnonzero(~is_first)), sm_choices[0], 1.0, 1.0, 1.0)
