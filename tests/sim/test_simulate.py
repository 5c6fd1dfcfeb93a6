import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from small_simulations import POLICIES, short_of_memory, without_clocks

from blendserve_core.kv.segments import shared_segments
from blendserve_core.perf.cost import CostModel
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.planner import make_plan
from blendserve_core.run import run_steps
from blendserve_core.schedule.policies.make import make_policy
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.sim.executor import SimulatedExecutor, simulated_capacity
from blendserve_core.sim.lengths import Lengths
from blendserve_core.sim.simulate import Settings, simulate
from blendserve_core.sim.steps import StepRecorder
from blendserve_core.sim.workload import EOS_TOKEN_ID, Workload, synthesize

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def cost():
    return short_of_memory()


@pytest.fixture
def workload():
    """Sixty short requests under two shared prompts, and six that decode long."""
    rng = np.random.default_rng(11)
    group = np.repeat([0, 1], 30).astype(np.int32)
    shared = Lengths(rng.integers(120, 200, 60).astype(np.int32), np.full(60, 4, np.int32), group, np.full(60, 100, np.int32))
    none = np.full(6, -1, np.int32)
    long = Lengths(rng.integers(20, 60, 6).astype(np.int32), rng.integers(400, 900, 6).astype(np.int32), none, none * 0)
    return synthesize([shared, long], rng)


def steps_of(workload, cost, policy, seed=0):
    """Run step records, as the simulator makes them, with lengths the planner knows nothing about."""
    requests = workload.requests
    tree = build_tree(requests)
    plan = make_plan(requests, tree, estimate_lengths(tree, requests), cost, policy, 1, seed)
    capacity = simulated_capacity(cost, max_step_tokens=256, max_sequences=64)
    order = plan.shards[0].order
    scheduler = Scheduler(
        requests,
        order,
        shared_segments(tree, order, capacity.page_size),
        tree.request_order,
        make_policy(policy, plan, order, requests, cost, capacity),
        capacity,
        (EOS_TOKEN_ID,),
    )
    return run_steps(scheduler, SimulatedExecutor(cost, workload.true_output_tokens, EOS_TOKEN_ID, capacity))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_ends_once_with_its_true_length(workload, cost, policy):
    ended = [finished for record in steps_of(workload, cost, policy) for finished in record.finished]
    assert Counter(f.request for f in ended) == Counter(range(workload.requests.num_requests))
    assert all(len(f.token_ids) == workload.true_output_tokens[f.request] for f in ended)


@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_are_conserved_and_kv_never_overflows(workload, cost, policy):
    recorder = StepRecorder()
    result = simulate(workload, cost, Settings(policy=policy, lengths="true", max_step_tokens=256), recorder)
    num_outputs = int(workload.true_output_tokens.sum())
    num_prompt_tokens = len(workload.requests.token_ids)
    num_computed = int((recorder.column("num_prefill_tokens") + recorder.column("num_decodes")).sum())
    # The last output of a request is never fed back, and cached prompt tokens are not computed.
    num_cached = round(result.sharing_ratio * num_prompt_tokens)
    num_needed = num_prompt_tokens - num_cached + num_outputs - result.num_requests
    assert result.num_requests == workload.requests.num_requests
    assert result.total_tokens == num_prompt_tokens + num_outputs
    assert recorder.column("num_sampled").sum() == num_outputs
    assert num_computed == num_needed + result.num_recomputed_tokens
    assert recorder.column("kv_tokens_held").max() <= cost.kv_capacity_tokens
    assert recorder.column("seconds").sum() == pytest.approx(result.seconds)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_run(workload, cost, policy):
    first, second = (simulate(workload, cost, Settings(policy=policy, seed=3)) for _ in range(2))
    assert without_clocks(first) == without_clocks(second)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_can_read_true_lengths(workload, cost, policy):
    """Until the first request ends, steps are the same whatever the true lengths are."""
    endless = Workload(workload.requests, np.full_like(workload.true_output_tokens, 1_000))
    for record, other in zip(steps_of(workload, cost, policy), steps_of(endless, cost, policy), strict=False):
        np.testing.assert_array_equal(record.step.seq_ids, other.step.seq_ids)
        np.testing.assert_array_equal(record.step.token_ids, other.step.token_ids)
        if record.finished:
            return
    pytest.fail("no request ended")


def test_nothing_beats_the_reachable_time(workload, cost):
    results = [simulate(workload, cost, Settings(policy=policy, lengths="true")) for policy in POLICIES]
    assert max(result.fraction_of_reachable for result in results) <= 1


def test_a_warm_up_counts_into_the_time(workload, cost):
    result = simulate(workload, cost, Settings(policy="blend", lengths="sampled", sample_fraction=0.2))
    assert 0 < result.warm_up_s < result.seconds
    assert result.num_requests == workload.requests.num_requests


def test_shards_share_the_work(workload, cost):
    one, two = (simulate(workload, cost, Settings(lengths="true", num_shards=num_shards)) for num_shards in (1, 2))
    assert len(two.shard_s) == 2
    assert two.num_requests == one.num_requests
    assert two.seconds < one.seconds


def test_an_overlapped_engine_is_faster_than_a_sequential_one(workload, cost):
    sequential = CostModel(cost.model, cost.hardware, "sequential")
    settings = Settings(policy="depth-first")
    assert simulate(workload, cost, settings).seconds < simulate(workload, sequential, settings).seconds


@pytest.mark.parametrize("policy", POLICIES)
def test_steps_are_what_they_were(workload, cost, policy):
    """A change of the scheduler or a policy shows here; if it is meant to, renew the files with RENEW_GOLDEN=1."""
    path = GOLDEN / f"{policy.replace('-', '_')}_steps.csv"
    rows = [
        (record.step.num_tokens, record.step.num_sequences, int(record.step.context_lens.sum()), len(record.finished))
        for record in steps_of(workload, cost, policy)
    ]
    if os.environ.get("RENEW_GOLDEN"):
        np.savetxt(path, rows, fmt="%d", delimiter=",")
    golden = np.loadtxt(path, delimiter=",", dtype=int)
    np.testing.assert_array_equal(rows, golden)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lengths": "guessed"}, "guessed"),
        ({"num_shards": 0}, "number of shards is 0"),
        ({"max_step_tokens": 0}, "max_step_tokens is 0"),
    ],
)
def test_settings_that_make_no_sense_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        Settings(**settings)
