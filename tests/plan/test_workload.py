from dataclasses import replace

import numpy as np
import pytest
from planning import COST, mixed_families, with_cascade, workload_of

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


def test_with_cascade_a_request_reads_its_part_of_a_shared_prefix_and_all_of_its_own():
    workload, _ = workload_of([[1] * 90 + [i] * 10 for i in range(2, 5)] + [[9] * 50], [20, 30, 40, 50])
    order = np.array([3, 0, 2])
    part = 90 / 3 + 10
    expected = [COST.memory_s(50, 50), COST.memory_s(part, 20), COST.memory_s(part, 40)]
    assert with_cascade(workload).memory_s(order) == pytest.approx(expected)
    assert with_cascade(workload).kv_reads(order) * COST.kv_token_s == pytest.approx(expected)


def test_with_cascade_totals_read_no_more_and_compute_the_same():
    workload, _ = workload_of(*mixed_families(size=16))
    alone, together = workload.totals(), with_cascade(workload).totals()
    assert together.kv_tokens_read < alone.kv_tokens_read
    assert replace(together, kv_tokens_read=alone.kv_tokens_read) == alone
