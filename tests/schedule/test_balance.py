from dataclasses import replace

import numpy as np
import pytest

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.schedule.policies.balance import Balance
from blendserve_core.schedule.policy import StepOutcome
from blendserve_core.schedule.step import StepResult

COST = CostModel(llama_3_8b(), a100_80gb())
NOBODY = np.empty(0, dtype=np.int64)


@pytest.mark.parametrize("num_kv_tokens_read", [200_000, 400_000])
def test_a_step_computes_as_long_as_it_reads(num_kv_tokens_read):
    num_tokens = Balance(COST).prefill_tokens(100, num_kv_tokens_read)
    compute_s = COST.step_compute_s(num_tokens + 100, 100, 0)
    assert compute_s == pytest.approx(COST.step_memory_s(num_kv_tokens_read), rel=0.01)


def test_tokens_that_hide_behind_the_reading_of_weights_are_taken_anyway():
    num_tokens = Balance(COST).prefill_tokens(1, 1)
    assert num_tokens > 0
    assert COST.step_compute_s(num_tokens + 1, 1, 0) == pytest.approx(COST.step_compute_s(1, 1, 0))


def test_many_decodes_leave_no_room_for_prompts():
    assert Balance(COST).prefill_tokens(2000, 10_000) == 0


def test_a_sequential_engine_has_nothing_to_balance():
    assert Balance(COST).is_useful
    assert not Balance(replace(COST, engine="sequential")).is_useful


def test_compute_that_takes_longer_than_predicted_gets_fewer_tokens():
    slow, exact = Balance(COST), Balance(COST)
    tokens = np.zeros(100, dtype=np.int32)
    compute_s, memory_s = float(COST.step_compute_s(600, 100, 0)), float(COST.step_memory_s(400_000))
    for _ in range(200):
        for each, factor in ((slow, 2.0), (exact, 1.0)):
            result = StepResult(tokens, 0.1, factor * compute_s, memory_s)
            each.observe(StepOutcome(100, 500, 400_000, result, NOBODY, NOBODY.astype(np.int32)))
    assert slow.prefill_tokens(100, 400_000) < 0.6 * exact.prefill_tokens(100, 400_000)
