import numpy as np
import pytest
from planning import COST, mixed_families, workload_of

from blendserve_core.perf.optimum import WorkloadTotals


def test_totals_are_those_of_the_requests_with_every_prefix_computed_once():
    prompts, outputs = mixed_families(size=16)
    workload, table = workload_of(prompts, outputs)
    tree = workload.tree
    expected = WorkloadTotals.of(tree.start_depth, tree.end_depth, table.num_prompt_tokens, np.array(outputs))
    totals = workload.totals()
    assert totals.num_unique_prompt_tokens == expected.num_unique_prompt_tokens
    assert totals.num_output_tokens == expected.num_output_tokens
    assert totals.longest_output_tokens == expected.longest_output_tokens
    assert totals.prefill_pairs == pytest.approx(expected.prefill_pairs)
    assert totals.kv_tokens_read == pytest.approx(expected.kv_tokens_read, rel=1e-6)


def test_seconds_follow_the_order_they_are_asked_in():
    workload, _ = workload_of([[1, 2, 3], [4]], [10, 500])
    order = np.array([1, 0])
    assert workload.compute_s(order, np.array([0, 2])) == pytest.approx([COST.compute_s(1, 500), COST.compute_s(3, 10, 2)])
    assert workload.memory_s(order) == pytest.approx([COST.memory_s(1, 500), COST.memory_s(3, 10)])
