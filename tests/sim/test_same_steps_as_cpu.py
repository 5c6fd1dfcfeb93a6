"""A tiny model on the CPU executor, its outputs forced to given lengths, takes the same steps as the simulator."""

from dataclasses import fields, replace
from typing import get_args

import numpy as np
import pytest

from blendserve_core.engine.load import load_cpu_executor
from blendserve_core.kv.segments import shared_segments
from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.planner import make_plan
from blendserve_core.run import run_steps
from blendserve_core.schedule.policies.make import make_policy
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.schedule.step import StepPlan
from blendserve_core.sim.executor import SimulatedExecutor
from blendserve_core.sim.lengths import Lengths
from blendserve_core.sim.workload import EOS_TOKEN_ID, Workload, synthesize
from schemas.parameters import EngineOptions, PolicyName

COST = CostModel(llama_3_8b(), a100_80gb())


class ForcedLengths:
    """The CPU executor with the simulator's tokens and times: it computes each step, and its rows end where the simulator's do.

    The policy "blend" steers by a step's times, so it is given the same ones.
    """

    def __init__(self, executor, simulated):
        self._executor = executor
        self._simulated = simulated
        self.capacity = executor.capacity

    def execute(self, step):
        measured, forced = self._executor.execute(step), self._simulated.execute(step)
        assert measured.token_ids.shape == forced.token_ids.shape
        return forced

    def close(self):
        self._executor.close()


@pytest.fixture(scope="module")
def workload():
    """Twenty prompts under one shared beginning, ten without, and outputs of up to 60 tokens."""
    rng = np.random.default_rng(2)
    group = np.repeat([0, -1], [20, 10]).astype(np.int32)
    prompts = rng.integers(50, 120, 30).astype(np.int32)
    made = synthesize([Lengths(prompts, rng.integers(1, 60, 30).astype(np.int32), group, np.where(group < 0, 0, 40))], rng)
    requests = made.requests
    sampling = replace(requests.sampling, max_tokens=np.full(30, 64, np.int32))
    return Workload(replace(requests, token_ids=requests.token_ids % 200 + 10, sampling=sampling), made.true_output_tokens)


@pytest.fixture(scope="module")
def cpu_executor(tiny_model_folder, workload):
    """A pool of 640 tokens for 3,000, so that sequences are retracted."""
    options = EngineOptions(kv_cache_tokens=640, max_step_tokens=96, max_sequences=16)
    return load_cpu_executor(tiny_model_folder, workload.requests, "float32", options)


def run(executor, workload, policy):
    requests, capacity = workload.requests, executor.capacity
    tree = build_tree(requests)
    plan = make_plan(requests, tree, estimate_lengths(tree, requests), COST, policy)
    order = plan.shards[0].order
    segments = shared_segments(tree, order, capacity.page_size)
    admission = make_policy(policy, plan, order, requests, COST, capacity)
    scheduler = Scheduler(requests, order, segments, tree.request_order, admission, capacity, (EOS_TOKEN_ID,))
    records = list(run_steps(scheduler, executor))
    return [record.step for record in records], scheduler.counters


@pytest.mark.parametrize("policy", get_args(PolicyName))
def test_simulator_and_cpu_take_the_same_steps(cpu_executor, workload, policy):
    simulated = SimulatedExecutor(COST, workload.true_output_tokens, EOS_TOKEN_ID, cpu_executor.capacity)
    expected, counters = run(simulated, workload, policy)
    steps, _ = run(ForcedLengths(cpu_executor, simulated), workload, policy)
    assert counters.num_retractions > 0 or policy in ("blend", "blend-paper")
    assert len(steps) == len(expected)
    for step, other in zip(steps, expected, strict=True):
        for field in fields(StepPlan):
            np.testing.assert_array_equal(getattr(step, field.name), getattr(other, field.name), err_msg=field.name)
