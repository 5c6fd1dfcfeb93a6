"""From a tree and length estimates to a plan: the order, its shards, and what it will take."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import CostModel, density
from blendserve_core.perf.optimum import practical_optimum_s
from blendserve_core.plan.node_costs import node_costs
from blendserve_core.plan.order import KEEP_SHARING, Order, density_order, depth_first_order, first_come_order, random_order
from blendserve_core.plan.packages import packages
from blendserve_core.plan.partition import Partition, cut_balanced, cut_in_sequence
from blendserve_core.plan.plan import LengthEstimates, Plan, PlanSummary, Shard
from blendserve_core.plan.sharing import shared_within
from blendserve_core.plan.tree import PrefixTree
from blendserve_core.plan.workload import Workload
from blendserve_core.requests import RequestTable
from schemas.parameters import PolicyName as Policy

HISTOGRAM_BOUNDS = (2.0**-12, 2.0**12)


def make_plan(
    requests: RequestTable,
    tree: PrefixTree,
    estimates: LengthEstimates,
    cost: CostModel,
    policy: str,
    num_shards: int = 1,
    seed: int = 0,
    *,
    keep_sharing: float = KEEP_SHARING,
    tree_s: float = 0.0,
) -> Plan:
    """Plan all requests of a table; shards may be empty where there are fewer requests than shards.

    ``keep_sharing`` bounds what the density orders may lose of a perfect order's shared tokens. ``tree_s`` is what building the
    tree took, for the summary. Raises ValueError for an unknown policy, no shards, a share outside [0, 1], or estimates of
    other requests.
    """
    _check(requests, estimates, policy, num_shards, keep_sharing)
    start = time.perf_counter()
    workload = Workload(tree, requests.num_prompt_tokens, requests.sampling.max_tokens, estimates, cost)
    order = _order(workload, policy, seed, keep_sharing)
    cut = cut_balanced if policy in ("blend", "blend-paper") else cut_in_sequence
    partition = cut(workload, order, num_shards)
    summary = _summary(workload, partition, policy, tree_s)
    shards = _shards(workload, partition, is_steered=policy == "blend")
    return Plan(tree, estimates, shards, replace(summary, plan_s=time.perf_counter() - start))


def _check(requests: RequestTable, estimates: LengthEstimates, policy: str, num_shards: int, keep_sharing: float) -> None:
    if policy not in get_args(Policy):
        raise ValueError(f"policy {policy!r} is not known; use one of {', '.join(get_args(Policy))}")
    if num_shards < 1:
        raise ValueError(f"number of shards is {num_shards}; use at least 1")
    if not 0 <= keep_sharing <= 1:
        raise ValueError(f"keep_sharing is {keep_sharing}; it is a share from 0 to 1")
    if len(estimates.mean_tokens) != requests.num_requests:
        raise ValueError(
            f"there are length estimates for {len(estimates.mean_tokens)} of {requests.num_requests} requests; "
            "estimate_lengths makes them for all, from a prior where nothing was observed"
        )


def _order(workload: Workload, policy: str, seed: int, keep_sharing: float) -> Order:
    num_requests = len(workload.num_prompt_tokens)
    if policy == "first-come":
        return first_come_order(num_requests)
    if policy == "random":
        return random_order(num_requests, seed)
    if policy == "depth-first":
        return depth_first_order(workload.tree)
    return density_order(workload, node_costs(workload), seed=seed if policy == "blend" else None, keep_sharing=keep_sharing)


def _shards(workload: Workload, partition: Partition, *, is_steered: bool) -> tuple[Shard, ...]:
    times, num_shards = partition.prediction, len(partition.orders)
    moves = [packages(workload, part, num_shards, is_steered=is_steered) for part in partition.orders]
    return tuple(
        Shard(
            rank=rank,
            order=part.order,
            unit_indptr=part.unit_indptr,
            package=moves[rank][0],
            tc_s=float(tc_s),
            tm_s=float(tm_s),
            predicted_s=float(predicted_s),
            num_early_packages=moves[rank][1],
        )
        for rank, (part, tc_s, tm_s, predicted_s) in enumerate(
            zip(partition.orders, times.tc_s, times.tm_s, times.predicted_s, strict=True)
        )
    )


def _summary(workload: Workload, partition: Partition, policy: str, tree_s: float) -> PlanSummary:
    tree, totals = workload.tree, workload.totals()
    num_prompt_tokens = int(workload.num_prompt_tokens.sum(dtype=np.int64))
    order = np.concatenate([part.order for part in partition.orders])
    rank = np.repeat(np.arange(len(partition.orders)), [len(part.order) for part in partition.orders])
    shared = shared_within(tree, order, rank)
    return PlanSummary(
        policy=policy,
        num_requests=len(workload.num_prompt_tokens),
        num_tokens=num_prompt_tokens + totals.num_output_tokens,
        unique_tokens=tree.num_unique_tokens,
        num_prompt_tokens=num_prompt_tokens,
        est_output_tokens=totals.num_output_tokens,
        sharing_ratio=int(shared.sum(dtype=np.int64)) / max(num_prompt_tokens, 1),
        max_sharing_ratio=1 - tree.num_unique_tokens / num_prompt_tokens if num_prompt_tokens else 0.0,
        density=_density_of_all(workload),
        predicted_s=float(partition.prediction.predicted_s.max()),
        optimum_s=practical_optimum_s(totals, workload.cost, len(partition.orders)),
        tree_s=tree_s,
        plan_s=0.0,
        partition=partition.method,
        hardware=workload.cost.hardware.name,
        density_histogram=_density_histogram(workload, order, shared),
    )


def _density_of_all(workload: Workload) -> float:
    if len(workload.num_prompt_tokens) == 0:
        return 0.0
    return float(node_costs(workload).density[0])


def _density_histogram(
    workload: Workload, order: NDArray[np.int64], num_cached_tokens: NDArray[np.int32]
) -> tuple[tuple[float, int], ...]:
    """(lower edge, requests) for each power of two from the least to the greatest density that occurs."""
    if len(order) == 0:
        return ()
    densities = density(workload.compute_s(order, num_cached_tokens), workload.memory_s(order))
    power = np.floor(np.log2(np.clip(densities, *HISTOGRAM_BOUNDS))).astype(np.int64)
    counts = np.bincount(power - power.min())
    return tuple((2.0 ** int(power.min() + offset), int(count)) for offset, count in enumerate(counts))
