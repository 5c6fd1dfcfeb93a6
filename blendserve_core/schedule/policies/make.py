"""A policy by name, for what is left of one shard of a plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import CostModel
from blendserve_core.plan.plan import Plan, Shard
from blendserve_core.plan.sharing import shared_with_previous
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.policies.blend import Blend, LeftDemand
from blendserve_core.schedule.policies.kv_forecast import KvForecast
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.policies.paper_blend import PaperBlend, RequestProfile
from blendserve_core.schedule.policies.ratio_control import RatioControl
from blendserve_core.schedule.policy import AdmissionPolicy
from blendserve_core.schedule.step import Capacity

ORDERED = ("first-come", "depth-first", "random")


def make_policy(
    name: str,
    plan: Plan,
    rank: int,
    order: NDArray[np.int64],
    requests: RequestTable,
    cost: CostModel,
    capacity: Capacity,
) -> AdmissionPolicy:
    """The policy that offers ``order``, what is left of shard ``rank``'s own. Raises ValueError for an unknown name."""
    if name in ORDERED:
        return OrderedAdmission(order)
    if name == "blend-paper":
        return PaperBlend(order, request_profile(plan, plan.shards[rank], requests, cost), capacity.num_tokens)
    if name == "blend":
        return _blend(plan, order, requests, cost, capacity)
    raise ValueError(f"policy {name!r} is not known; use one of {', '.join(ORDERED)}, blend-paper, blend")


def _blend(
    plan: Plan, order: NDArray[np.int64], requests: RequestTable, cost: CostModel, capacity: Capacity
) -> AdmissionPolicy:
    compute_s, memory_s = request_times(plan, order, requests, cost)
    num_own_tokens = requests.num_prompt_tokens.copy()
    num_own_tokens[order] -= shared_with_previous(plan.tree, order)
    forecast = KvForecast(plan.estimates, num_own_tokens, requests.sampling.max_tokens)
    demand = LeftDemand(num_own_tokens[order].astype(np.float64), memory_s / cost.kv_token_s)
    control = RatioControl(cost, compute_s, memory_s)
    return Blend(order, forecast, control, demand, requests.num_requests, capacity.num_tokens)


def request_times(
    plan: Plan, order: NDArray[np.int64], requests: RequestTable, cost: CostModel
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Expected compute and memory seconds of each request in ``order``, shared prompt tokens computed once."""
    num_prompt = requests.num_prompt_tokens[order].astype(np.float64)
    mean = plan.estimates.mean_tokens[order].astype(np.float64)
    compute_s = cost.compute_s(num_prompt, mean, shared_with_previous(plan.tree, order).astype(np.float64))
    return compute_s, cost.memory_s(num_prompt, mean, plan.estimates.second_moment[order].astype(np.float64))


def request_profile(plan: Plan, shard: Shard, requests: RequestTable, cost: CostModel) -> RequestProfile:
    """What the paper's dual scan needs to know: the density of each request's unit, and of the whole shard."""
    compute_s, memory_s = request_times(plan, shard.order, requests, cost)
    memory_s = np.maximum(memory_s, 1e-12)
    unit_of = np.repeat(np.arange(len(shard.unit_indptr) - 1), np.diff(shard.unit_indptr))
    unit_density = np.bincount(unit_of, compute_s) / np.bincount(unit_of, memory_s)
    density = np.ones(requests.num_requests)
    density[shard.order] = unit_density[unit_of]
    root_density = float(compute_s.sum() / memory_s.sum()) if shard.num_requests else 1.0
    return RequestProfile(requests.num_prompt_tokens, plan.estimates.mean_tokens, density, root_density)
