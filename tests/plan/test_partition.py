import numpy as np
import pytest
from planning import mixed_families, workload_of

from blendserve_core.plan.node_costs import node_costs
from blendserve_core.plan.order import density_order, depth_first_order, first_come_order
from blendserve_core.plan.partition import cut_balanced, cut_in_sequence, deal, dual_scan
from blendserve_core.plan.pieces import Pieces


@pytest.fixture(scope="module")
def job():
    prompts, outputs = mixed_families(size=400)
    workload, _ = workload_of(prompts, outputs)
    return workload, density_order(workload, node_costs(workload), seed=0)


def pieces_of(load, unit=None):
    load = np.array(load, float)
    unit = np.arange(len(load)) if unit is None else np.array(unit)
    return Pieces(np.arange(len(load) + 1), unit, load, np.ones(len(load)))


def totals(pieces, shard, num_shards):
    return np.stack([np.bincount(shard, weights=pieces.load[:, side], minlength=num_shards) for side in (0, 1)], axis=1)


@pytest.mark.parametrize("num_shards", [1, 2, 3, 8])
def test_every_request_is_in_one_shard_at_one_position(job, num_shards):
    workload, order = job
    for cut in (cut_balanced, cut_in_sequence):
        orders = cut(workload, order, num_shards).orders
        assert len(orders) == num_shards
        assert sorted(np.concatenate([part.order for part in orders]).tolist()) == list(range(len(order.order)))
        assert all((np.diff(part.unit_indptr) > 0).all() and part.unit_indptr[-1] == len(part.order) for part in orders)


@pytest.mark.parametrize("num_shards", [2, 4])
def test_both_resources_are_balanced(job, num_shards):
    times = cut_balanced(*job, num_shards).prediction
    for seconds in (times.tc_s, times.tm_s, times.predicted_s):
        assert seconds.max() < 1.1 * seconds.mean()


def test_a_single_shard_keeps_the_order_and_its_units(job):
    workload, order = job
    part = cut_balanced(workload, order, 1).orders[0]
    assert part.order.tolist() == order.order.tolist()
    assert part.unit_indptr.tolist() == order.unit_indptr.tolist()


def test_ranges_keep_the_order(job):
    workload, _ = job
    order = first_come_order(len(workload.num_prompt_tokens))
    orders = cut_in_sequence(workload, order, 3).orders
    assert np.concatenate([part.order for part in orders]).tolist() == order.order.tolist()


def test_vector_lpt_balances_opposite_pieces():
    pieces = pieces_of([[8, 0], [8, 0], [0, 8], [0, 8], [1, 1], [1, 1]])
    assert totals(pieces, deal(pieces, 2), 2) == pytest.approx(np.full((2, 2), 0.5))


def test_dealing_spreads_every_unit_over_all_shards():
    rng = np.random.default_rng(0)
    pieces = pieces_of(rng.random((12, 2)) + 0.5, np.repeat([0, 1, 2], 4))
    shard = deal(pieces, 4, spread_units=True)
    assert [sorted(shard[first : first + 4].tolist()) for first in (0, 4, 8)] == [[0, 1, 2, 3]] * 3


def test_a_job_of_long_shared_prompts_is_cut_without_computing_them_again():
    prompts = [[*[family] * 2000, i] for family in range(80) for i in range(8)]
    workload, _ = workload_of(prompts, [20] * 640)
    order = density_order(workload, node_costs(workload), seed=0)
    one, four = (cut_balanced(workload, order, num_shards).prediction for num_shards in (1, 4))
    assert four.tc_s.sum() < 1.01 * one.tc_s.sum()
    assert four.predicted_s.max() < 1.03 * one.predicted_s.max() / 4


@pytest.mark.parametrize("cut", [cut_balanced, cut_in_sequence])
def test_a_job_under_one_long_prefix_is_shared_out_where_that_is_faster(cut):
    workload, _ = workload_of([[1] * 3000 + [2, i] for i in range(100)], [200] * 100)
    order = depth_first_order(workload.tree)
    one, four = (cut(workload, order, num_shards).prediction for num_shards in (1, 4))
    assert four.predicted_s.max() < one.predicted_s.max()
    assert (four.predicted_s > 0).all()


def test_the_dual_scan_gives_every_shard_both_ends():
    load = [[3, 1]] * 40 + [[1, 3]] * 40
    pieces = pieces_of(load)
    shares = totals(pieces, dual_scan(pieces, 4), 4)
    assert shares == pytest.approx(np.full((4, 2), 0.25), abs=0.03)


def test_more_shards_than_requests_leave_some_empty():
    workload, _ = workload_of([[1], [2]], [5, 5])
    partition = cut_balanced(workload, first_come_order(2), 5)
    assert sorted(len(part.order) for part in partition.orders) == [0, 0, 0, 1, 1]
    assert (partition.prediction.predicted_s == 0).sum() == 3


def test_a_few_very_long_outputs_are_kept_together():
    lengths = [3000, 2500, 2200, 2000, *[200] * 20]
    workload, _ = workload_of([[i, 1] for i in range(24)] + [[100 + i, *range(2000)] for i in range(800)], lengths + [2] * 800)
    partition = cut_balanced(workload, density_order(workload, node_costs(workload), seed=0), 4)
    assert partition.method == "by length"
    assert any({0, 1} <= set(part.order.tolist()) for part in partition.orders)
