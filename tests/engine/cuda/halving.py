"""A cut that takes every step of two sequences or more in two, whether that pays or not."""

from __future__ import annotations

import numpy as np

from blendserve_core.engine.cuda.cut import Cut
from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.overlap import OverlapRates
from blendserve_core.schedule.step import StepPlan


def cut_in_half(step: StepPlan, cost: CostModel, rates: OverlapRates, sm_choices: tuple[int, ...]) -> Cut:
    everything = np.arange(step.num_sequences)
    if step.num_sequences < 2:
        return Cut((everything,), 0, 1.0, 1.0, 2.0)
    return Cut((everything[::2], everything[1::2]), sm_choices[0], 1.0, 1.0, 1.0)
