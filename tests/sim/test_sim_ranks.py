"""Ranks side by side: what one takes over from another, on one clock."""

from collections import Counter

import numpy as np
import pytest
from small_simulations import POLICIES, short_of_memory, without_clocks

from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.claim_rule import Package
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.planner import make_plan
from blendserve_core.plan.rank_work import RankWork
from blendserve_core.sim.lengths import Lengths
from blendserve_core.sim.ranks import SharedClaims
from blendserve_core.sim.simulate import Settings, simulate
from blendserve_core.sim.steps import StepRecorder, total_seconds
from blendserve_core.sim.workload import synthesize


@pytest.fixture
def cost():
    return short_of_memory()


@pytest.fixture
def workload():
    """Three hundred short requests under ten shared prompts, and twenty that decode long, some ten times others."""
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(10), 30).astype(np.int32)
    prefix = np.full(300, 60, np.int32)
    short = Lengths(rng.integers(120, 200, 300).astype(np.int32), np.full(300, 4, np.int32), group, prefix)
    none = np.full(20, -1, np.int32)
    outputs = np.geomspace(100, 1500, 20).astype(np.int32)
    long = Lengths(rng.integers(20, 60, 20).astype(np.int32), outputs, none, none * 0)
    return synthesize([short, long], rng)


@pytest.fixture
def plan(workload, cost):
    tree = build_tree(workload.requests)
    estimates = estimate_lengths(tree, workload.requests, expected_output_tokens=workload.true_output_tokens)
    return make_plan(workload.requests, tree, estimates, cost, "blend", num_shards=3)


def works_of(plan, is_open):
    owners: dict[Package, int] = {}
    return [RankWork(plan, SharedClaims(plan, rank, owners), is_open) for rank in range(3)]


def taken_by(work):
    """All that a rank can claim."""
    for is_early in (True, False):
        while (more := work.more(is_early=is_early)) is not None:
            yield more


@pytest.mark.parametrize("num_shards", [2, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_runs_on_one_rank_and_no_rank_overflows(workload, cost, policy, num_shards):
    recorder = StepRecorder()
    settings = Settings(policy=policy, num_shards=num_shards, sample_fraction=0.1)
    result = simulate(workload, cost, settings, recorder)
    assert result.num_requests == workload.requests.num_requests
    assert recorder.column("num_sampled").sum() == workload.true_output_tokens.sum()
    assert recorder.column("kv_tokens_held").max() <= cost.kv_capacity_tokens
    assert set(recorder.column("shard")) == set(range(num_shards))


def test_seconds_are_those_of_the_slowest_rank(workload, cost):
    recorder = StepRecorder()
    result = simulate(workload, cost, Settings(num_shards=3, sample_fraction=0.1), recorder)
    assert result.seconds == pytest.approx(result.warm_up_s + max(result.shard_s))
    columns = (recorder.column(name) for name in ("shard", "is_warm_up", "seconds"))
    assert total_seconds(*columns) == pytest.approx(result.seconds)


@pytest.mark.parametrize("policy", ["depth-first", "blend"])
def test_the_same_seed_gives_the_same_run_on_several_ranks(workload, cost, policy):
    first, second = (simulate(workload, cost, Settings(policy=policy, num_shards=3, seed=3)) for _ in range(2))
    assert without_clocks(first) == without_clocks(second)


def test_no_rank_is_faster_than_the_reachable_time(workload, cost):
    assert simulate(workload, cost, Settings(lengths="true", num_shards=3)).fraction_of_reachable <= 1


def test_the_ranks_share_out_everything_once(plan, workload):
    works = works_of(plan, np.ones(workload.requests.num_requests, bool))
    taken = [work.order for work in works]
    taken += [more for work in reversed(works) for more in taken_by(work)]
    assert Counter(np.concatenate(taken).tolist()) == Counter(range(workload.requests.num_requests))


def test_finished_requests_are_not_handed_out(plan, workload):
    is_open = np.ones(workload.requests.num_requests, bool)
    done = plan.shards[0].in_packages([1])
    is_open[done] = False
    works = works_of(plan, is_open)
    handed_out = [works[0].may_come, *(work.order for work in works), *taken_by(works[1])]
    assert not np.isin(np.concatenate(handed_out), done).any()


def test_the_long_outputs_of_a_plan_start_early(workload, cost):
    """With the lengths known they lie together, and a few steps in they are running."""
    recorder = StepRecorder()
    simulate(workload, cost, Settings(lengths="true", num_shards=3), recorder)
    shard, decodes = recorder.column("shard"), recorder.column("num_decodes")
    assert any((decodes[shard == rank][3:40] > 0).all() for rank in range(3))
