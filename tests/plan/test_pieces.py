import numpy as np
import pytest
from planning import mixed_families, workload_of

from blendserve_core.plan.node_costs import node_costs
from blendserve_core.plan.order import density_order, depth_first_order
from blendserve_core.plan.pieces import PIECES_PER_SHARD, cut_pieces


def test_units_are_cut_where_the_least_prefix_is_shared():
    prompts = [[1, *[family] * 30, i] for family in range(60) for i in range(10)]
    workload, _ = workload_of(prompts, [3] * 600)
    pieces = cut_pieces(workload, depth_first_order(workload.tree), 2)
    assert len(pieces.unit) > 20
    assert (pieces.indptr[1:-1] % 10 == 0).all()


def test_a_giant_request_ends_its_piece():
    workload, _ = workload_of([[1, 1], [1, 2], [1, 3]], [10, 100_000, 10])
    pieces = cut_pieces(workload, depth_first_order(workload.tree), 4)
    assert pieces.indptr.tolist() == [0, 2, 3]


def test_pieces_end_with_their_unit_and_no_piece_but_a_single_request_is_much_too_large():
    workload, _ = workload_of(*mixed_families(size=400))
    order = density_order(workload, node_costs(workload), seed=0)
    pieces = cut_pieces(workload, order, num_shards=2)
    assert set(order.unit_indptr.tolist()) <= set(pieces.indptr.tolist())
    largest = workload.cost.memory_s(100, 20_000) / workload.memory_s(order.order).sum()
    assert (pieces.load.mean(axis=1) <= 1 / (2 * PIECES_PER_SHARD) + largest).all()
    assert pieces.load.sum(axis=0) == pytest.approx([1, 1])


def test_units_large_enough_are_cut_for_every_shard():
    workload, _ = workload_of([[1, i] for i in range(400)] + [[2, i] for i in range(400)], [5] * 800)
    pieces = cut_pieces(workload, depth_first_order(workload.tree), 4, per_unit=4)
    assert np.bincount(pieces.unit).min() >= 4


def test_one_shard_needs_no_pieces():
    workload, _ = workload_of([[1, 1], [1, 2], [2, 3]], [5] * 3)
    order = depth_first_order(workload.tree)
    assert cut_pieces(workload, order, 1).indptr.tolist() == order.unit_indptr.tolist()


def test_a_long_prefix_is_not_computed_twice_to_make_a_small_piece():
    workload, _ = workload_of([[1] * 500 + [i] for i in range(100)], [3] * 100)
    assert len(cut_pieces(workload, depth_first_order(workload.tree), 2).unit) == 1


def test_a_piece_computes_its_first_prompt_whole():
    workload, _ = workload_of([[1] * 5 + [i] * 50 for i in range(2, 102)], [3] * 100)
    pieces = cut_pieces(workload, depth_first_order(workload.tree), 2)
    sizes = np.diff(pieces.indptr)
    request_s = workload.cost.compute_s(55, 3, 5)
    expected = sizes * request_s + workload.cost.compute_s(5, 0, 0)
    assert len(sizes) > 10
    assert pieces.load[:, 0] == pytest.approx(expected / expected.sum())
