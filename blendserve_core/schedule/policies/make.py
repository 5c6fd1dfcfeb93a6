"""A policy by name, for one shard of a plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import CostModel
from blendserve_core.plan.plan import Plan
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.policies.balance import Balance
from blendserve_core.schedule.policies.blend import Blend, Forecasts
from blendserve_core.schedule.policies.kv_forecast import KvForecast
from blendserve_core.schedule.policies.lengths_seen import LengthsSeen
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.policies.paper_blend import PaperBlend, RequestProfile
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
    outputs_so_far: dict[int, NDArray[np.int32]] | None = None,
) -> AdmissionPolicy:
    """The policy that offers ``order``, what is left of a shard's own; ``outputs_so_far`` are those it goes on from.

    Raises ValueError for an unknown name.
    """
    if name in ORDERED:
        return OrderedAdmission(order)
    times = RequestTimes.of(plan, requests, cost)
    if name == "blend-paper":
        return PaperBlend(order, RequestProfile.of(plan, requests, times), capacity.num_tokens)
    if name == "blend":
        policy = _blend(plan, requests, times, cost, capacity, outputs_so_far or {})
        policy.add(order)
        return policy
    raise ValueError(f"policy {name!r} is not known; use one of {', '.join(ORDERED)}, blend-paper, blend")


def _blend(
    plan: Plan,
    requests: RequestTable,
    times: RequestTimes,
    cost: CostModel,
    capacity: Capacity,
    outputs_so_far: dict[int, NDArray[np.int32]],
) -> Blend:
    num_outputs = np.zeros(requests.num_requests, dtype=np.int32)
    for request, token_ids in outputs_so_far.items():
        num_outputs[request] = len(token_ids)
    is_memory_intensive = _unit_density(plan, times) < 1.0
    max_outputs = requests.sampling.max_tokens
    lengths = LengthsSeen(plan.estimates, np.flatnonzero(is_memory_intensive), max_outputs)
    right, both = (KvForecast(plan.estimates, lengths, times.num_own_tokens, max_outputs) for _ in range(2))
    return Blend(times, is_memory_intensive, num_outputs, lengths, Forecasts(right, both), Balance(cost), capacity.num_tokens)


def _unit_density(plan: Plan, times: RequestTimes) -> NDArray[np.float64]:
    """[R] density of the schedulable unit that a request belongs to."""
    memory_s = np.maximum(times.memory_s, 1e-12)
    density = np.ones(len(memory_s))
    for shard in plan.shards:
        unit_of = np.repeat(np.arange(len(shard.unit_indptr) - 1), np.diff(shard.unit_indptr))
        unit_density = np.bincount(unit_of, times.compute_s[shard.order]) / np.bincount(unit_of, memory_s[shard.order])
        density[shard.order] = unit_density[unit_of]
    return density
