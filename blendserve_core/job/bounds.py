"""How fast the job could have run at best on this machine, now that its outputs' lengths are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.job.job import Job
from blendserve_core.perf.engine_cost import engine_cost
from blendserve_core.perf.optimum import WorkloadTotals, practical_optimum_s
from blendserve_core.perf.rank_bound import OutputWork, reachable_on_ranks_s
from blendserve_core.plan.plan import Plan
from blendserve_core.requests import RequestTable


@dataclass(frozen=True, slots=True)
class Bounds:
    """Two yardsticks of :mod:`blendserve_core.perf.optimum` in seconds, at the rates of ``hardware``."""

    hardware: str
    optimum_s: float
    reachable_s: float


def time_bounds(job: Job, plan: Plan, requests: RequestTable, num_output_tokens: NDArray[np.int64]) -> Bounds:
    """Bounds for what engines had to do: ``requests`` with their true ``num_output_tokens`` [R], every shared prefix once."""
    parameters, num_shards = job.parameters, len(plan.shards)
    cost = engine_cost(job.model_folder, parameters.dtype, parameters.engine, num_shards)
    prompts, tree = requests.num_prompt_tokens, plan.tree
    totals = WorkloadTotals.of(tree.start_depth, tree.end_depth, prompts, num_output_tokens)
    outputs = OutputWork.of(prompts, num_output_tokens, cost)
    return Bounds(
        hardware=cost.hardware.name,
        optimum_s=practical_optimum_s(totals, cost, num_shards),
        reachable_s=reachable_on_ranks_s(totals, outputs, cost, num_shards),
    )
