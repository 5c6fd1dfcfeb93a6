"""What a simulation reports, beside the yardsticks that come from the workload alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.optimum import WorkloadTotals, practical_optimum_s, reachable_s
from blendserve_core.perf.rank_bound import OutputWork, reachable_on_ranks_s
from blendserve_core.plan.build_tree import build_tree
from blendserve_core.plan.tree import PrefixTree
from blendserve_core.sim.part import Part
from blendserve_core.sim.steps import StepRecorder
from blendserve_core.sim.unique_reads import least_kv_reads
from blendserve_core.sim.workload import Workload


@dataclass(frozen=True, slots=True)
class Simulation:
    """What came of it. ``seconds`` is the warm-up and the slowest shard; ``tc_s`` and ``tm_s`` are sums over all shards.

    ``fraction_of_practical_optimum`` and ``fraction_of_reachable`` are those times over ``seconds``. ``sharing_ratio`` is the
    share of prompt tokens found in the cache, ``max_sharing_ratio`` what a perfect depth-first order would find.
    """

    seconds: float
    tokens_per_s: float
    total_tokens: int
    t_practical_optimum_s: float
    t_reachable_s: float
    fraction_of_practical_optimum: float
    fraction_of_reachable: float
    sharing_ratio: float
    max_sharing_ratio: float
    num_requests: int
    num_retractions: int
    num_recomputed_tokens: int
    num_steps: int
    schedule_ms_mean: float
    schedule_ms_p99: float
    tc_s: float
    tm_s: float
    warm_up_s: float
    shard_s: tuple[float, ...]
    tree_s: float
    plan_s: float
    simulation_s: float


def summarize(
    workload: Workload,
    cost: CostModel,
    tree: PrefixTree,
    warm_up: list[Part],
    shards: list[Part],
    clock: tuple[float, float, float],
) -> Simulation:
    parts = warm_up + shards
    num_prompt_tokens = workload.requests.num_prompt_tokens
    totals = _totals(workload, cost, tree)
    total_prompt_tokens = int(num_prompt_tokens.sum(dtype=np.int64))
    total_tokens = total_prompt_tokens + totals.num_output_tokens
    warm_up_s = max((part.seconds for part in warm_up), default=0.0)
    seconds = warm_up_s + max(part.seconds for part in shards)
    optimum_s = practical_optimum_s(totals, cost, len(shards))
    outputs = OutputWork.of(num_prompt_tokens, workload.true_output_tokens, cost)
    bound_s = reachable_on_ranks_s(totals, outputs, cost, len(shards))
    schedule_ms = np.concatenate([part.schedule_s for part in parts]) * 1e3
    return Simulation(
        seconds=seconds,
        tokens_per_s=total_tokens / seconds,
        total_tokens=total_tokens,
        t_practical_optimum_s=optimum_s,
        t_reachable_s=bound_s,
        fraction_of_practical_optimum=optimum_s / seconds,
        fraction_of_reachable=bound_s / seconds,
        sharing_ratio=sum(part.num_cached_tokens for part in parts) / total_prompt_tokens,
        max_sharing_ratio=1 - totals.num_unique_prompt_tokens / total_prompt_tokens,
        num_requests=sum(len(part.finished) for part in parts),
        num_retractions=sum(part.num_retractions for part in parts),
        num_recomputed_tokens=sum(part.num_recomputed_tokens for part in parts),
        num_steps=len(schedule_ms),
        schedule_ms_mean=float(schedule_ms.mean()),
        schedule_ms_p99=float(np.percentile(schedule_ms, 99)),
        tc_s=sum(part.tc_s for part in parts),
        tm_s=sum(part.tm_s for part in parts),
        warm_up_s=warm_up_s,
        shard_s=tuple(part.seconds for part in shards),
        tree_s=clock[0],
        plan_s=clock[1],
        simulation_s=clock[2],
    )


def retimed(result: Simulation, workload: Workload, cost: CostModel, recorder: StepRecorder) -> Simulation:
    """The result of one rank's run whose ``recorder`` was timed by another ``cost`` (:meth:`StepRecorder.timed_by`)."""
    assert len(result.shard_s) == 1, "which rank takes over what depends on the time"
    totals = _totals(workload, cost, build_tree(workload.requests))
    is_warm_up, step_s = recorder.column("is_warm_up").astype(bool), recorder.column("seconds")
    seconds, warm_up_s = float(step_s.sum()), float(step_s[is_warm_up].sum())
    optimum_s, bound_s = practical_optimum_s(totals, cost), reachable_s(totals, cost)
    return replace(
        result,
        seconds=seconds,
        tokens_per_s=result.total_tokens / seconds,
        t_practical_optimum_s=optimum_s,
        t_reachable_s=bound_s,
        fraction_of_practical_optimum=optimum_s / seconds,
        fraction_of_reachable=bound_s / seconds,
        warm_up_s=warm_up_s,
        shard_s=(seconds - warm_up_s,),
    )


def _totals(workload: Workload, cost: CostModel, tree: PrefixTree) -> WorkloadTotals:
    """With cascade, KV reads are those that no schedule can spare."""
    outputs = workload.true_output_tokens
    totals = WorkloadTotals.of(tree.start_depth, tree.end_depth, workload.requests.num_prompt_tokens, outputs)
    if not cost.cascade:
        return totals
    return replace(totals, kv_tokens_read=least_kv_reads(tree, outputs, cost.kv_capacity_tokens))
