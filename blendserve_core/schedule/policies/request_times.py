"""What the planner expects of each request, as the policies use it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import CostModel
from blendserve_core.plan.plan import Plan
from blendserve_core.plan.sharing import shared_in_tree_order
from blendserve_core.plan.workload import Workload
from blendserve_core.requests import RequestTable


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Expectations by request, all [num_requests] of the table.

    num_own_tokens  prompt tokens that it does not share with its neighbour in the tree
    compute_s, memory_s  expected seconds of each resource, shared prompt tokens computed once
    kv_reads        expected KV tokens that its decodes read
    """

    num_own_tokens: NDArray[np.int32]
    compute_s: NDArray[np.float64]
    memory_s: NDArray[np.float64]
    kv_reads: NDArray[np.float64]

    @classmethod
    def of(cls, plan: Plan, requests: RequestTable, cost: CostModel) -> RequestTimes:
        """From a plan's estimates, for the requests of all its shards."""
        shared = np.zeros(requests.num_requests, dtype=np.int32)
        shared[plan.tree.request_order] = shared_in_tree_order(plan.tree)
        workload = Workload(plan.tree, requests.num_prompt_tokens, requests.sampling.max_tokens, plan.estimates, cost)
        everything = np.arange(requests.num_requests)
        return cls(
            num_own_tokens=requests.num_prompt_tokens - shared,
            compute_s=workload.compute_s(everything, shared),
            memory_s=workload.memory_s(everything),
            kv_reads=workload.kv_reads(everything),
        )
