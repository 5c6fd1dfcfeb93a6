"""Plan and run a workload on the simulated executor: the same planner, scheduler and policies that drive the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from blendserve_core.kv.segments import shared_segments
from blendserve_core.perf.cost import CostModel
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.claim_rule import Package
from blendserve_core.plan.lengths import estimate_lengths
from blendserve_core.plan.plan import LengthEstimates, Plan
from blendserve_core.plan.planner import make_plan
from blendserve_core.plan.rank_work import RankWork
from blendserve_core.plan.sample import choose_sample
from blendserve_core.plan.tree import PrefixTree
from blendserve_core.schedule.policies.make import make_policy
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.policy import AdmissionPolicy
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.sim.executor import SimulatedExecutor, simulated_capacity
from blendserve_core.sim.part import Part, PartRun, observations, run_part
from blendserve_core.sim.ranks import Rank, SharedClaims, run_ranks
from blendserve_core.sim.result import Simulation, summarize
from blendserve_core.sim.steps import StepRecorder
from blendserve_core.sim.workload import EOS_TOKEN_ID, Workload

LengthKnowledge = Literal["sampled", "true"]
CHUNK_TOKENS, LARGEST_STEP_TOKENS = 2048, 8192
PLANNED_BY_LENGTH = ("blend", "blend-paper")
NO_OUTPUTS: dict[int, NDArray[np.int32]] = {}


@dataclass(frozen=True, slots=True)
class Settings:
    """How to run. ``lengths`` is what the planner may know: "sampled" outputs of a warm-up, or the "true" ones beforehand.

    The warm-up generates ``sample_fraction`` of the requests and ends when ``warm_up_share`` of them have; the others go on in
    the main run. By default the paper's policy, whose estimates stay what they are, waits for all of them. Policies that plan
    by order alone take no warm-up.

    ``max_step_tokens`` is by default a usual chunk of prefill, or, for a policy that sizes its steps itself, a generous bound.
    """

    policy: str = "blend"
    lengths: LengthKnowledge = "sampled"
    sample_fraction: float = 0.01
    warm_up_share: float | None = None
    num_shards: int = 1
    seed: int = 0
    max_step_tokens: int | None = None
    max_sequences: int = 2048

    def __post_init__(self) -> None:
        if self.lengths not in get_args(LengthKnowledge):
            raise ValueError(f"lengths {self.lengths!r} is not known; use sampled or true")
        if self.num_shards < 1:
            raise ValueError(f"number of shards is {self.num_shards}; use at least 1")
        if self.max_step_tokens is not None and self.max_step_tokens < 1:
            raise ValueError(f"max_step_tokens is {self.max_step_tokens}; use at least 1")

    @property
    def share_to_wait_for(self) -> float:
        """Share of the sample that ends before the main run begins."""
        return self.warm_up_share or (1.0 if self.policy == "blend-paper" else 0.9)

    @property
    def step_tokens(self) -> int:
        """Most tokens of a step."""
        return self.max_step_tokens or (LARGEST_STEP_TOKENS if self.policy == "blend" else CHUNK_TOKENS)


def simulate(workload: Workload, cost: CostModel, settings: Settings, recorder: StepRecorder | None = None) -> Simulation:
    """Run a workload to its end. ``recorder`` gets every step, the warm-up's first; shards take turns by their clocks."""
    started = time.perf_counter()
    tree = build_tree(workload.requests)
    tree_s = time.perf_counter() - started
    simulator = _Simulator(workload, cost, settings, tree, recorder)
    warm_up, estimates = simulator.learn_lengths()
    plan_started = time.perf_counter()
    plan = make_plan(workload.requests, tree, estimates, cost, settings.policy, settings.num_shards, settings.seed)
    plan_s = time.perf_counter() - plan_started
    shards = simulator.run_shards(plan, warm_up)
    simulation_s = time.perf_counter() - started
    return summarize(workload, cost, tree, warm_up, shards, (tree_s, plan_s, simulation_s))


class _Simulator:
    """The parts of a run that share a workload, a tree and an executor."""

    def __init__(
        self, workload: Workload, cost: CostModel, settings: Settings, tree: PrefixTree, recorder: StepRecorder | None
    ) -> None:
        self._workload = workload
        self._cost = cost
        self._settings = settings
        self._tree = tree
        self._recorder = recorder
        self._capacity = simulated_capacity(cost, max_step_tokens=settings.step_tokens, max_sequences=settings.max_sequences)
        self._executor = SimulatedExecutor(cost, workload.true_output_tokens, EOS_TOKEN_ID, self._capacity, recorder=recorder)

    def learn_lengths(self) -> tuple[list[Part], LengthEstimates]:
        """The warm-up's runs, one per shard, and what the planner may believe afterwards."""
        requests, settings = self._workload.requests, self._settings
        if settings.lengths == "true":
            return [], estimate_lengths(self._tree, requests, expected_output_tokens=self._workload.true_output_tokens)
        if settings.policy not in PLANNED_BY_LENGTH:
            return [], estimate_lengths(self._tree, requests)
        sample = choose_sample(self._tree, requests, settings.sample_fraction, settings.seed)
        parts = [self._warm_up(rank, sample[rank :: settings.num_shards]) for rank in range(settings.num_shards)]
        return parts, estimate_lengths(self._tree, requests, observations(parts))

    def run_shards(self, plan: Plan, warm_up: list[Part]) -> list[Part]:
        """The main run: what the warm-up has left, by all ranks side by side."""
        is_open = np.ones(self._workload.requests.num_requests, dtype=np.bool_)
        for part in warm_up:
            is_open[part.finished] = False
        begun = {request: tokens for part in warm_up for request, tokens in part.unfinished.items()}
        owners: dict[Package, int] = {}
        works = [RankWork(plan, SharedClaims(plan, shard.rank, owners), is_open) for shard in plan.shards]
        ranks = [self._rank(plan, work, begun) for work in works]
        return run_ranks(ranks, lambda rank: self._note_place(rank, is_warm_up=False))

    def _rank(self, plan: Plan, work: RankWork, begun: dict[int, NDArray[np.int32]]) -> Rank:
        workload = self._workload
        policy = make_policy(self._settings.policy, plan, work.order, workload.requests, self._cost, self._capacity, begun)
        return Rank(work, policy, PartRun(self._scheduler(work.may_come, policy, begun), self._executor))

    def _warm_up(self, rank: int, sample: NDArray[np.int64]) -> Part:
        """Generate a shard's part of the sample depth first until most of it has ended."""
        self._note_place(rank, is_warm_up=True)
        position = np.empty(self._workload.requests.num_requests, dtype=np.int64)
        position[self._tree.request_order] = np.arange(len(position))
        order = sample[np.argsort(position[sample])]
        stop_at = int(np.ceil(self._settings.share_to_wait_for * len(order)))
        return run_part(self._scheduler(order, OrderedAdmission(order)), self._executor, stop_at)

    def _note_place(self, rank: int, *, is_warm_up: bool) -> None:
        if self._recorder is not None:
            self._recorder.begin(shard=rank, is_warm_up=is_warm_up)

    def _scheduler(
        self, order: NDArray[np.int64], policy: AdmissionPolicy, outputs_so_far: dict[int, NDArray[np.int32]] = NO_OUTPUTS
    ) -> Scheduler:
        requests, capacity, positions = self._workload.requests, self._capacity, self._tree.request_order
        segments = shared_segments(self._tree, order, capacity.page_size)
        return Scheduler(requests, order, segments, positions, policy, capacity, (EOS_TOKEN_ID,), outputs_so_far)
