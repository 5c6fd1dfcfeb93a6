"""A policy by name, for one shard of a plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import CostModel
from blendserve_core.plan.plan import Plan, Shard
from blendserve_core.plan.sharing import shared_with_previous
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.policies.paper_blend import PaperBlend, RequestProfile
from blendserve_core.schedule.policy import AdmissionPolicy
from blendserve_core.schedule.step import Capacity

ORDERED = ("first-come", "depth-first", "random")


def make_policy(
    name: str, plan: Plan, shard: Shard, order: NDArray[np.int64], num_prompt_tokens: NDArray[np.int32],
    cost: CostModel, capacity: Capacity,
) -> AdmissionPolicy:  # fmt: skip
    """The policy that offers ``order``, what is left of the shard's own. Raises ValueError for an unknown name."""
    if name in ORDERED:
        return OrderedAdmission(order)
    if name in ("blend-paper", "blend"):
        return PaperBlend(order, request_profile(plan, shard, num_prompt_tokens, cost), capacity.num_tokens)
    raise ValueError(f"policy {name!r} is not known; use one of {', '.join(ORDERED)}, blend-paper, blend")


def request_profile(plan: Plan, shard: Shard, num_prompt_tokens: NDArray[np.int32], cost: CostModel) -> RequestProfile:
    """Density of each request's unit, with what the unit shares along the shard's order computed once."""
    estimates, order = plan.estimates, shard.order
    num_prompt, mean = num_prompt_tokens[order].astype(np.float64), estimates.mean_tokens[order].astype(np.float64)
    compute_s = cost.compute_s(num_prompt, mean, shared_with_previous(plan.tree, order).astype(np.float64))
    memory_s = np.maximum(cost.memory_s(num_prompt, mean, estimates.second_moment[order]), 1e-12)
    unit_of = np.repeat(np.arange(len(shard.unit_indptr) - 1), np.diff(shard.unit_indptr))
    unit_density = np.bincount(unit_of, compute_s) / np.bincount(unit_of, memory_s)
    density = np.ones(len(num_prompt_tokens))
    density[order] = unit_density[unit_of]
    root_density = float(compute_s.sum() / memory_s.sum()) if len(order) else 1.0
    return RequestProfile(num_prompt_tokens, estimates.mean_tokens, density, root_density)
