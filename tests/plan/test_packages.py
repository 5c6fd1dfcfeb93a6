"""What the plan lets move between shards."""

import numpy as np
import pytest
from planning import COST, mixed_families, opposite_halves, workload_of

from blendserve_core.plan.packages import MOVABLE_SHARE, NUM_PACKAGES
from blendserve_core.plan.plan import FIXED
from blendserve_core.plan.planner import make_plan


def plan_of(prompts, outputs, num_shards, policy="blend"):
    workload, table = workload_of(prompts, outputs)
    return make_plan(table, workload.tree, workload.estimates, COST, policy, num_shards), np.asarray(outputs)


@pytest.mark.parametrize("policy", ["first-come", "depth-first", "random", "blend-paper", "blend"])
def test_every_request_is_fixed_or_in_one_package_of_its_shard(policy):
    plan, outputs = plan_of(*mixed_families(size=60), num_shards=3, policy=policy)
    for shard in plan.shards:
        parts = [shard.in_packages([package]) for package in range(shard.num_packages + 1)]
        assert sorted(np.concatenate(parts)) == sorted(shard.order)
    assert sum(shard.num_requests for shard in plan.shards) == len(outputs)


def test_about_the_movable_share_of_a_shard_may_move():
    plan, _ = plan_of(*opposite_halves(), num_shards=2, policy="blend-paper")
    for shard in plan.shards:
        num_movable = shard.num_requests - len(shard.in_packages([FIXED]))
        assert 1 < shard.num_packages <= NUM_PACKAGES
        assert 0.3 * MOVABLE_SHARE < num_movable / shard.num_requests <= 1.2 * MOVABLE_SHARE


@pytest.mark.parametrize("policy", ["depth-first", "blend-paper"])
def test_giants_stay_where_they_are_with_policies_that_keep_to_their_plan(policy):
    plan, outputs = plan_of(*opposite_halves(), num_shards=2, policy=policy)
    for shard in plan.shards:
        assert shard.num_early_packages == 0
        assert outputs[shard.in_packages(range(1, shard.num_packages + 1))].max(initial=0) < 8000


def test_giants_are_handed_out_early_the_longest_first():
    plan, outputs = plan_of(*opposite_halves(), num_shards=2)
    for shard in plan.shards:
        giants = shard.order[outputs[shard.order] >= 8000]
        early = range(1, shard.num_early_packages + 1)
        assert set(giants) <= set(shard.in_packages(early))
        means = [outputs[shard.in_packages([package])].mean() for package in early]
        assert means == sorted(means, reverse=True)


def test_a_single_shard_shares_with_nobody():
    plan, _ = plan_of(*mixed_families(size=60), num_shards=1)
    assert plan.shards[0].num_packages == 0
    assert plan.shards[0].in_packages([FIXED]).tolist() == plan.shards[0].order.tolist()


def test_packages_keep_the_order_of_the_shard():
    plan, _ = plan_of(*opposite_halves(), num_shards=2)
    shard = plan.shards[0]
    position = {request: i for i, request in enumerate(shard.order.tolist())}
    places = [position[request] for request in shard.in_packages([1, 3]).tolist()]
    assert places == sorted(places)


def test_empty_shards_have_nothing_to_move():
    plan, _ = plan_of([[1, 2, 3]], [5], num_shards=3)
    assert [shard.num_packages for shard in plan.shards] == [0, 0, 0]
