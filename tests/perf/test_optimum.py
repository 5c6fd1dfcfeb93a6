import numpy as np
import pytest

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.optimum import WorkloadTotals, min_steps, practical_optimum_s, reachable_s
from blendserve_core.perf.presets import llama_3_8b


@pytest.fixture
def cost():
    return CostModel(llama_3_8b(), a100_80gb())


@pytest.fixture
def totals():
    """The size of a mix of 400,000 requests: 100 M unique prompt tokens, 10 M outputs."""
    return WorkloadTotals(100_000_000, 10_000_000, 2e10, 8e10, 60_000)


def test_totals_count_shared_tokens_once_and_reads_per_request():
    # Prompts of 30 and 50 tokens that share 20: the shared segment and two leaves.
    start_depth, end_depth = np.array([0, 20, 20]), np.array([20, 30, 50])
    totals = WorkloadTotals.of(start_depth, end_depth, np.array([30, 50]), np.array([2, 4]))
    assert totals.num_unique_prompt_tokens == 60
    assert totals.prefill_pairs == sum(range(1, 31)) + sum(range(21, 51))
    assert totals.kv_tokens_read == (30 + 31) + (50 + 51 + 52 + 53)
    assert (totals.num_output_tokens, totals.longest_output_tokens) == (6, 4)


def test_the_practical_optimum_uses_the_rates_of_table_1_at_batch_1024(cost, totals):
    compute_s = 62.7e-6 * 110e6 + 4.1e-6 * 10e6 + 2.62144e-9 * 2e10
    memory_s = 76.8e-9 * 8e10
    assert practical_optimum_s(totals, cost) == pytest.approx(compute_s + 0.15 * memory_s, rel=3e-3)


def test_the_reachable_time_adds_the_constants_of_the_steps_that_must_happen(cost, totals):
    num_steps = 8e10 / cost.kv_capacity_tokens
    compute_s = 57.4e-6 * 110e6 + 4.1e-6 * 10e6 + 2.62144e-9 * 2e10 + 5.31e-3 * num_steps
    memory_s = 73.1e-9 * 8e10 + 3.78e-3 * num_steps
    assert reachable_s(totals, cost) == pytest.approx(compute_s + 0.15 * memory_s, rel=1e-3)


def test_the_longest_output_sets_the_number_of_steps_of_a_small_workload(cost):
    assert min_steps(WorkloadTotals(1000, 5000, 1e5, 1e7, 4000), cost) == 4000
