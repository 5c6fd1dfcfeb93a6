"""A policy by name, for one shard of a plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import CostModel
from blendserve_core.plan.plan import Plan
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.policies.blend import Blend
from blendserve_core.schedule.policies.kv_forecast import KvForecast
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.policies.paper_blend import PaperBlend, RequestProfile
from blendserve_core.schedule.policies.ratio_control import RatioControl
from blendserve_core.schedule.policies.request_times import RequestTimes
from blendserve_core.schedule.policy import AdmissionPolicy
from blendserve_core.schedule.step import Capacity

ORDERED = ("first-come", "depth-first", "random")


def make_policy(
    name: str,
    plan: Plan,
    order: NDArray[np.int64],
    requests: RequestTable,
    cost: CostModel,
    capacity: Capacity,
) -> AdmissionPolicy:
    """The policy that offers ``order``, what is left of a shard's own. Raises ValueError for an unknown name."""
    if name in ORDERED:
        return OrderedAdmission(order)
    times = RequestTimes.of(plan, requests, cost)
    if name == "blend-paper":
        return PaperBlend(order, request_profile(plan, requests, times), capacity.num_tokens)
    if name == "blend":
        forecast = KvForecast(plan.estimates, times.num_own_tokens, requests.sampling.max_tokens)
        policy = Blend(times, forecast, RatioControl(cost), capacity.num_tokens)
        policy.add(order)
        return policy
    raise ValueError(f"policy {name!r} is not known; use one of {', '.join(ORDERED)}, blend-paper, blend")


def request_profile(plan: Plan, requests: RequestTable, times: RequestTimes) -> RequestProfile:
    """What the paper's dual scan needs to know: the density of each request's unit, and of the whole job."""
    memory_s = np.maximum(times.memory_s, 1e-12)
    density = np.ones(requests.num_requests)
    for shard in plan.shards:
        unit_of = np.repeat(np.arange(len(shard.unit_indptr) - 1), np.diff(shard.unit_indptr))
        unit_density = np.bincount(unit_of, times.compute_s[shard.order]) / np.bincount(unit_of, memory_s[shard.order])
        density[shard.order] = unit_density[unit_of]
    root_density = float(times.compute_s.sum() / memory_s.sum()) if requests.num_requests else 1.0
    return RequestProfile(requests.num_prompt_tokens, plan.estimates.mean_tokens, density, root_density)
