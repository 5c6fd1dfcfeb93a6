from dataclasses import replace

import numpy as np
import pytest
from plan_tables import table_of
from planning import COST, mixed_families, naive_shared_tokens, opposite_halves, workload_of

from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.describe import describe
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.plan import Plan
from blendserve_core.plan.planner import make_plan

POLICIES = ["first-come", "depth-first", "random", "blend-paper", "blend"]


def plan_of(prompts, policy="blend", num_shards=1, outputs=None, **columns):
    table = table_of(prompts, **columns)
    tree = build_tree(table)
    estimates = estimate_lengths(tree, table, expected_output_tokens=outputs)
    return make_plan(table, tree, estimates, COST, policy, num_shards, seed=0)


def mixed_plan(policy, num_shards=1):
    prompts, outputs = mixed_families()
    return plan_of(prompts, policy, num_shards, np.array(outputs), max_tokens=100_000), prompts


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_shards", [1, 3])
def test_every_request_has_one_leaf_one_shard_and_one_position(policy, num_shards):
    plan, prompts = mixed_plan(policy, num_shards)
    assert [shard.rank for shard in plan.shards] == list(range(num_shards))
    assert sorted(np.concatenate([shard.order for shard in plan.shards]).tolist()) == list(range(len(prompts)))
    for request, node in enumerate(plan.tree.node_of_request):
        assert plan.tree.end_depth[node] == len(prompts[request])
        below = plan.tree.request_order[plan.tree.request_start[node] : plan.tree.request_end[node]]
        assert request in below


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_shards", [1, 3])
def test_sharing_is_counted_as_token_by_token(policy, num_shards):
    plan, prompts = mixed_plan(policy, num_shards)
    total = sum(map(len, prompts))
    saved = sum(naive_shared_tokens(prompts, shard.order.tolist()) for shard in plan.shards)
    unique = len({tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)})
    assert plan.summary.sharing_ratio == pytest.approx(saved / total)
    assert plan.summary.max_sharing_ratio == pytest.approx(1 - unique / total)
    assert (plan.summary.num_prompt_tokens, plan.summary.unique_tokens) == (total, unique)


def test_a_blend_keeps_the_sharing_and_is_predicted_faster_than_depth_first():
    prompts, outputs = opposite_halves()
    plans = {policy: plan_of(prompts, policy, 1, np.array(outputs), max_tokens=10_000).summary for policy in POLICIES}
    for policy in ("blend", "blend-paper"):
        assert plans[policy].sharing_ratio >= 0.99 * plans[policy].max_sharing_ratio
        assert plans[policy].predicted_s < 0.9 * plans["depth-first"].predicted_s
    assert plans["depth-first"].sharing_ratio == pytest.approx(plans["depth-first"].max_sharing_ratio)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_plan(policy):
    first, second = mixed_plan(policy, 2)[0], mixed_plan(policy, 2)[0]
    assert all(np.array_equal(a.order, b.order) for a, b in zip(first.shards, second.shards, strict=True))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("prompts", [[], [[1, 2, 3]], [[4, 4, 4]] * 20], ids=["none", "one", "identical"])
def test_degenerate_jobs_have_plans(policy, num_shards, prompts, tmp_path):
    plan = plan_of(prompts, policy, num_shards)
    assert sum(shard.num_requests for shard in plan.shards) == len(prompts)
    assert np.isfinite([plan.summary.density, plan.summary.predicted_s, plan.summary.optimum_s]).all()
    assert f"requests        {len(prompts)}" in describe(plan)
    plan.save(tmp_path)
    assert Plan.load(tmp_path).summary == plan.summary


def test_samples_of_one_row_share_all_but_their_outputs():
    plan = plan_of([[1, 2, 3, 4]] * 2, num_samples=5)
    assert plan.summary.unique_tokens == 4
    assert plan.summary.sharing_ratio == pytest.approx(0.9)
    assert len(plan.shards[0].unit_indptr) == 2


def test_estimates_of_other_requests_are_refused():
    workload, table = workload_of([[1], [2]], [3, 3])
    fewer = replace(workload.estimates, mean_tokens=workload.estimates.mean_tokens[:1])
    with pytest.raises(ValueError, match="length estimates for 1 of 2 requests; estimate_lengths"):
        make_plan(table, workload.tree, fewer, COST, "blend")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "longest-first"}, "policy 'longest-first' is not known; use one of first-come"),
        ({"policy": "blend", "num_shards": 0}, "number of shards is 0"),
        ({"policy": "blend", "keep_sharing": 99}, "keep_sharing is 99"),
    ],
)
def test_what_cannot_be_planned_is_named(arguments, message):
    workload, table = workload_of([[1], [2]], [3, 3])
    with pytest.raises(ValueError, match=message):
        make_plan(table, workload.tree, workload.estimates, COST, **arguments)
