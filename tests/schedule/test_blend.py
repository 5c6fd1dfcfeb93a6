"""The default policy on small jobs: it must serve everything, whatever the estimates say."""

from dataclasses import replace

import numpy as np
import pytest
from checking_executor import CheckingExecutor, naive_output
from hypothesis import example, given, settings
from hypothesis import strategies as st
from request_tables import request_table

from blendserve_core.kv.segments import shared_segments
from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.planner import make_plan
from blendserve_core.schedule.policies.make import make_policy
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.schedule.step import Capacity

SLOW_MEMORY = replace(a100_80gb(), kv_bytes_per_s=a100_80gb().kv_bytes_per_s / 200)
COST = CostModel(llama_3_8b(), SLOW_MEMORY)
"""Reads so slowly that already outputs of a hundred tokens are memory-intensive."""
POLICIES = ["first-come", "depth-first", "random", "blend-paper", "blend"]


def run(name: str, prompts: list[list[int]], max_tokens: list[int], capacity: Capacity, expected=None, eos=()):
    requests = request_table(prompts, max_tokens)
    tree = build_tree(requests)
    estimates = estimate_lengths(tree, requests, expected_output_tokens=expected)
    plan = make_plan(requests, tree, estimates, COST, name)
    order = plan.shards[0].order
    policy = make_policy(name, plan, order, requests, COST, capacity)
    segments = shared_segments(tree, order, capacity.page_size)
    scheduler = Scheduler(requests, order, segments, tree.request_order, policy, capacity, eos)
    executor = CheckingExecutor(capacity)
    outputs = {}
    while (step := scheduler.schedule()) is not None:
        for finished in scheduler.update(executor.execute(step)):
            outputs[finished.request] = finished.token_ids.tolist()
    assert policy.num_waiting == 0
    return [outputs[request] for request in range(len(prompts))], scheduler, executor


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    num_requests=st.integers(1, 25),
    num_pages=st.integers(12, 40),
    name=st.sampled_from(POLICIES),
    error=st.sampled_from([0.1, 1.0, 10.0]),
)
@example(seed=289, num_requests=16, num_pages=13, name="first-come", error=0.1)
def test_every_policy_serves_everything_however_wrong_its_estimates_are(seed, num_requests, num_pages, name, error):
    rng = np.random.default_rng(seed)
    trunk = rng.integers(0, 50, 20).tolist()
    prompts = [trunk[: rng.integers(0, 20)] + rng.integers(0, 50, rng.integers(1, 9)).tolist() for _ in range(num_requests)]
    max_tokens = rng.choice([1, 3, 15], num_requests).tolist()
    capacity = Capacity(num_pages, 4, max_step_tokens=24, max_sequences=8, max_sequence_tokens=200)
    outputs, _, _ = run(name, prompts, max_tokens, capacity, np.array(max_tokens) * error, eos=(7,))
    assert outputs == [naive_output(prompt, limit, (7,)) for prompt, limit in zip(prompts, max_tokens, strict=True)]


@pytest.fixture
def mixed_job():
    """Forty prompts of many tokens with one output, and eight short prompts with many outputs."""
    rng = np.random.default_rng(0)
    heavy = [rng.integers(0, 50, 40).tolist() for _ in range(40)]
    long = [rng.integers(0, 50, 3).tolist() for _ in range(8)]
    return [*heavy, *long], [1] * 40 + [100] * 8


CAPACITY = Capacity(num_pages=120, page_size=4, max_step_tokens=64, max_sequences=32, max_sequence_tokens=400)


def test_steps_mix_prompts_and_long_outputs(mixed_job):
    prompts, max_tokens = mixed_job
    _, _, executor = run("blend", prompts, max_tokens, CAPACITY, np.array(max_tokens))
    is_mixed = [bool((step.num_outputs > 0).any() and (step.num_outputs == 0).any()) for step in executor.steps]
    with_prompts = [bool((step.num_outputs == 0).any()) for step in executor.steps]
    assert sum(is_mixed) >= 0.8 * sum(with_prompts)


def test_the_forecast_keeps_long_outputs_from_crowding_each_other_out(mixed_job):
    prompts, max_tokens = mixed_job
    expected = np.array(max_tokens)
    small = Capacity(num_pages=80, page_size=4, max_step_tokens=64, max_sequences=32, max_sequence_tokens=400)
    _, forecasting, _ = run("blend", prompts[40:], max_tokens[40:], small, expected[40:])
    _, greedy, _ = run("depth-first", prompts[40:], max_tokens[40:], small, expected[40:])
    assert forecasting.counters.num_retractions <= 1
    assert greedy.counters.num_retractions >= 5
