import numpy as np
import pytest
from planning import COST

from blendserve_core.plan.partition import deal
from blendserve_core.plan.pieces import Pieces
from blendserve_core.plan.stratify import stratify


def pieces_of(compute_s, memory_s, longest):
    num = len(compute_s)
    seconds = np.stack([compute_s, memory_s], axis=1).astype(float)
    return Pieces(np.arange(num + 1), np.arange(num), seconds, np.array(longest, float))


def heavy_tailed(num_long=40, num_short=60):
    """Long outputs of ever less length, the first ones most of a rank's time, and compute to go with them."""
    longest = np.concatenate([100_000 / np.arange(1, num_long + 1) ** 0.6, np.full(num_short, 10.0)])
    memory_s = np.where(longest > 10, COST.kv_token_s * longest**2 / 2, 0.5)
    return pieces_of(np.where(longest > 10, 1.0, 40.0), memory_s, longest)


def steps_of_all_ranks(pieces, shard, num_shards):
    return sum(pieces.longest[shard == rank].max(initial=0) for rank in range(num_shards))


@pytest.mark.parametrize("num_shards", [2, 4, 8])
def test_every_piece_has_a_shard(num_shards):
    shard = stratify(heavy_tailed(), num_shards, COST)
    assert set(shard.tolist()) <= set(range(num_shards))
    assert len(set(shard.tolist())) == num_shards


def test_long_outputs_lie_together_so_that_fewer_steps_are_paid_than_by_largest_first():
    pieces = heavy_tailed()
    together, apart = stratify(pieces, 4, COST), deal(pieces, 4)
    assert steps_of_all_ranks(pieces, together, 4) < 0.8 * steps_of_all_ranks(pieces, apart, 4)


def test_the_rank_of_the_longest_output_has_less_other_work():
    pieces = heavy_tailed()
    shard = stratify(pieces, 4, COST)
    compute_s = np.bincount(shard, weights=pieces.seconds[:, 0], minlength=4)
    assert shard[0] == np.argmin(compute_s)


def test_outputs_of_one_length_are_balanced():
    pieces = pieces_of(np.ones(64), np.full(64, 2.0), np.full(64, 1000.0))
    assert np.bincount(stratify(pieces, 4, COST)).tolist() == [16] * 4


def test_a_job_without_long_outputs_is_balanced_by_compute():
    pieces = pieces_of(np.full(40, 3.0), np.full(40, 0.1), np.full(40, 5.0))
    assert np.bincount(stratify(pieces, 4, COST)).tolist() == [10] * 4


def test_no_two_pieces_share_a_shard_where_there_are_shards_enough():
    assert len(set(stratify(pieces_of([1.0, 2.0], [3.0, 1.0], [10, 5]), 4, COST))) == 2
