from dataclasses import replace

import numpy as np
import pytest

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.schedule.policies.ratio_control import RatioControl
from blendserve_core.schedule.policy import Load, StepOutcome
from blendserve_core.schedule.step import StepResult

COST = CostModel(llama_3_8b(), a100_80gb())
NOBODY = np.empty(0, dtype=np.int64)


def load(num_kv_tokens_read: int = 400_000, num_decode_tokens: int = 100) -> Load:
    return Load(NOBODY, NOBODY.astype(np.int32), NOBODY.astype(np.int32), 0, 100, 16, num_decode_tokens, 0, num_kv_tokens_read)


def control(compute_s: float, memory_s: float, cost: CostModel = COST) -> RatioControl:
    ratio = RatioControl(cost)
    ratio.add(compute_s, memory_s)
    return ratio


@pytest.mark.parametrize("density", [0.8, 1.0, 1.4])
def test_a_step_gets_the_density_of_what_remains(density):
    num_tokens = control(density * 100.0, 100.0).prefill_tokens(load(), 4096)
    compute_s = COST.step_compute_s(num_tokens + 100, 100, 0)
    memory_s = COST.step_memory_s(400_000)
    assert compute_s / memory_s == pytest.approx(density, rel=0.01)


def test_the_step_budget_is_never_exceeded():
    assert control(1000.0, 1.0).prefill_tokens(load(), 512) == 512


def test_without_memory_work_left_there_is_nothing_to_balance():
    assert control(10.0, 0.0).prefill_tokens(load(), 512) == 512


def test_a_sequential_engine_takes_all_it_may():
    sequential = replace(COST, engine="sequential")
    assert control(1.0, 100.0, sequential).prefill_tokens(load(), 512) == 512


def test_compute_that_takes_longer_than_predicted_gets_fewer_tokens():
    slow, exact = control(100.0, 100.0), control(100.0, 100.0)
    tokens = np.zeros(100, dtype=np.int32)
    compute_s, memory_s = float(COST.step_compute_s(600, 100, 0)), float(COST.step_memory_s(400_000))
    for _ in range(200):
        for each, factor in ((slow, 2.0), (exact, 1.0)):
            result = StepResult(tokens, 0.1, factor * compute_s, memory_s)
            each.observe(StepOutcome(100, 500, 400_000, result, NOBODY, NOBODY.astype(np.int32)))
    assert slow.prefill_tokens(load(), 4096) < 0.6 * exact.prefill_tokens(load(), 4096)


def test_what_was_done_no_longer_remains():
    each = control(10.0, 10.0)
    result = StepResult(np.zeros(100, dtype=np.int32), 0.1)
    before = each.prefill_tokens(load(), 4096)
    each.observe(StepOutcome(100, 50_000, 400_000, result, NOBODY, NOBODY.astype(np.int32)))
    assert each.prefill_tokens(load(), 4096) < before
