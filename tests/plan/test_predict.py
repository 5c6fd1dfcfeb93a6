import numpy as np
import pytest
from planning import COST, mixed_families, opposite_halves, with_cascade, workload_of

from blendserve_core.plan.order import depth_first_order
from blendserve_core.plan.predict import predict


def whole(workload, is_mixed=True):
    order = workload.tree.request_order
    return predict(workload, order, np.array([0, len(order)]), is_mixed=is_mixed)


def test_seconds_are_sums_over_requests_with_shared_prefixes_computed_once():
    workload, _ = workload_of([[1, 2, 3], [1, 2, 4], [5]], [10, 20, 30])
    prediction = whole(workload)
    compute_s = COST.compute_s(3, 10, 0) + COST.compute_s(3, 20, 2) + COST.compute_s(1, 30, 0)
    memory_s = COST.memory_s(3, 10) + COST.memory_s(3, 20) + COST.memory_s(1, 30)
    assert prediction.tc_s[0] == pytest.approx(compute_s)
    assert prediction.tm_s[0] == pytest.approx(memory_s)


def test_a_lone_long_output_pays_a_steps_constants_per_token():
    workload, _ = workload_of([[1, 2, 3]], [10_000])
    assert whole(workload).predicted_s[0] >= 10_000 * COST.combine(COST.gemm_fixed_s, COST.decode_fixed_s)


def test_mixing_both_ends_is_predicted_faster_than_one_end_after_the_other():
    workload, _ = workload_of(*opposite_halves())
    assert whole(workload).predicted_s[0] < 0.9 * whole(workload, is_mixed=False).predicted_s[0]


def test_a_shard_shares_nothing_with_the_one_before():
    workload, _ = workload_of([[1] * 50 + [i] for i in range(4)], [3] * 4)
    order = depth_first_order(workload.tree).order
    together = predict(workload, order, np.array([0, 4]), is_mixed=True)
    apart = predict(workload, order, np.array([0, 2, 4]), is_mixed=True)
    assert apart.tc_s.sum() == pytest.approx(together.tc_s.sum() + COST.compute_s(50, 0, 0))


def test_empty_shards_take_no_time():
    workload, _ = workload_of(*mixed_families(size=8))
    order = workload.tree.request_order
    prediction = predict(workload, order, np.array([0, 0, len(order), len(order)]), is_mixed=False)
    assert prediction.predicted_s[[0, 2]].tolist() == [0, 0]
    assert prediction.predicted_s[1] > 0


def test_reading_shared_prefixes_once_is_predicted_faster():
    stem = list(range(2000))
    workload, _ = workload_of([[*stem, 5000 + i] for i in range(50)], [400] * 50)
    alone, together = whole(workload), whole(with_cascade(workload))
    assert together.tm_s[0] < 0.2 * alone.tm_s[0]
    assert together.tc_s[0] == alone.tc_s[0]
    assert together.predicted_s[0] < alone.predicted_s[0]
