"""A job of about a minute on the device: the real planner, scheduler and executor, with known output lengths."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blendserve_core.kv.segments import shared_segments
from blendserve_core.perf.cost import CostModel
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.planner import make_plan
from blendserve_core.run import run_steps
from blendserve_core.schedule.policies.make import make_policy
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.schedule.step import Capacity, Executor, LaunchingExecutor, StepPlan, StepResult
from blendserve_core.sim.lengths import Lengths, openvid_like
from blendserve_core.sim.workload import EOS_TOKEN_ID, Workload


def shorter_videos(num_requests: int, rng: np.random.Generator) -> Lengths:
    """OpenVid's outputs at a sixteenth of their length and, for the same density, more of them: a minute has an end then."""
    lengths = openvid_like(num_requests, rng)
    return replace(lengths, num_output_tokens=np.maximum(lengths.num_output_tokens // 16, 1))


@dataclass(frozen=True, slots=True)
class Served:
    """What a run did in ``seconds``, of which ``schedule_share`` is the scheduler's."""

    policy: str
    seconds: float
    num_tokens: int
    num_steps: int
    mean_step_s: float
    schedule_share: float
    is_whole: bool

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds


class EndsAtTrueLength:
    """An executor whose sequences end where the workload says: random weights have no end of their own."""

    def __init__(self, executor: Executor, workload: Workload) -> None:
        self._executor = executor
        self._true_output_tokens = workload.true_output_tokens

    @property
    def capacity(self) -> Capacity:
        return self._executor.capacity

    def launch(self, step: StepPlan) -> tuple[StepPlan, Any]:
        if isinstance(self._executor, LaunchingExecutor):
            return step, self._executor.launch(step)
        return step, self._executor.execute(step)

    def finish(self, launched: tuple[StepPlan, Any]) -> StepResult:
        step, inner = launched
        result = self._executor.finish(inner) if isinstance(self._executor, LaunchingExecutor) else inner
        sampled = step.is_sampled
        is_last = step.num_outputs[sampled] + 1 >= self._true_output_tokens[step.seq_ids[sampled]]
        # Any other token will do where the model happens to end too early.
        tokens = np.where(result.token_ids == EOS_TOKEN_ID, EOS_TOKEN_ID + 1, result.token_ids)
        return replace(result, token_ids=np.where(is_last, EOS_TOKEN_ID, tokens).astype(np.int32))

    def may_be_followed(self, step: StepPlan) -> bool:
        return isinstance(self._executor, LaunchingExecutor) and self._executor.may_be_followed(step)

    def execute(self, step: StepPlan) -> StepResult:
        return self.finish(self.launch(step))

    def close(self) -> None:
        self._executor.close()


def serve_for(seconds: float, policy_name: str, workload: Workload, executor: Executor, cost: CostModel) -> Served:
    """Serve a workload, or as much of it as ``seconds`` are enough for. Prompt tokens from the cache count, as in a job.

    Two policies compare by runs that are whole; what they do first is not the same work.
    """
    requests = workload.requests
    tree = build_tree(requests)
    estimates = estimate_lengths(tree, requests, expected_output_tokens=workload.true_output_tokens)
    plan = make_plan(requests, tree, estimates, cost, policy_name, 1, 0)
    order = plan.shards[0].order
    policy = make_policy(policy_name, plan, order, requests, cost, executor.capacity)
    segments = shared_segments(tree, order, executor.capacity.page_size)
    scheduler = Scheduler(requests, order, segments, tree.request_order, policy, executor.capacity, (EOS_TOKEN_ID,))
    ending = EndsAtTrueLength(executor, workload)
    num_tokens = num_steps = 0
    step_s = schedule_s = 0.0
    started = time.perf_counter()
    num_finished = 0
    for record in run_steps(scheduler, ending):
        num_steps += 1
        num_finished += len(record.finished)
        is_first = record.step.num_outputs == 0
        is_whole = is_first & record.step.is_sampled
        num_tokens += len(record.result.token_ids) + int(requests.num_prompt_tokens[record.step.seq_ids[is_whole]].sum())
        step_s += record.result.seconds
        schedule_s += record.schedule_s
        if time.perf_counter() - started > seconds:
            break
    spent = time.perf_counter() - started
    return Served(
        policy=policy_name,
        seconds=spent,
        num_tokens=num_tokens,
        num_steps=num_steps,
        mean_step_s=step_s / num_steps,
        schedule_share=schedule_s / spent,
        is_whole=num_finished == requests.num_requests,
    )
