"""The reachable time of several ranks, a lower bound on the slowest rank's time whatever the partition.

The work can be shared out evenly, the steps cannot: a rank steps on until its longest output ends, and pays every step's
constants. So N ranks take more than an N-th of one rank's time where a few outputs are very long. Prefixes that several ranks
compute once more are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import CostModel, kv_reads
from blendserve_core.perf.optimum import WorkloadTotals, reachable_s, time_with_steps_s

NUM_HALVINGS = 60


def reachable_on_ranks_s(totals: WorkloadTotals, outputs: OutputWork, cost: CostModel, num_ranks: int) -> float:
    """T_reach of ``num_ranks`` ranks: :func:`reachable_s` for one.

    Within T seconds, ranks that are done need so many steps in all, fewer for a longer T; and all of them together have
    ``num_ranks * T`` seconds for the work and those steps. The least T for which that holds is the bound, or the longest
    output's own time on a rank of its own.
    """
    if num_ranks == 1:
        return reachable_s(totals, cost)
    full_steps = totals.kv_tokens_read / cost.kv_capacity_tokens
    low = time_with_steps_s(totals, cost, full_steps) / num_ranks
    high = time_with_steps_s(totals, cost, max(full_steps, num_ranks * float(totals.longest_output_tokens))) / num_ranks
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        num_steps = max(full_steps, outputs.min_steps(middle, num_ranks, cost))
        if time_with_steps_s(totals, cost, num_steps) <= num_ranks * middle:
            high = middle
        else:
            low = middle
    return max(high, outputs.longest_s(cost))


@dataclass(frozen=True, slots=True)
class OutputWork:
    """Outputs from long to short, each with the work of itself and all longer ones, prompts not computed; arrays are [R].

    num_tokens [R] non-increasing;  compute_s, memory_s [R] sums up to here
    """

    num_tokens: NDArray[np.float64]
    compute_s: NDArray[np.float64]
    memory_s: NDArray[np.float64]

    @classmethod
    def of(cls, num_prompt_tokens: NDArray[Any], num_output_tokens: NDArray[Any], cost: CostModel) -> OutputWork:
        longest_first = np.argsort(-num_output_tokens.astype(np.int64), kind="stable")
        outputs = num_output_tokens[longest_first].astype(np.float64)
        # With cascade a prompt may be read together with others; only a request's own outputs are surely read by it alone.
        prompts = np.zeros(len(outputs)) if cost.cascade else num_prompt_tokens[longest_first]
        return cls(
            num_tokens=outputs,
            compute_s=np.cumsum((cost.gemm_token_s + cost.lm_head_token_s) * outputs),
            memory_s=np.cumsum(cost.kv_token_s * kv_reads(prompts, outputs)),
        )

    def min_steps(self, seconds: float, num_ranks: int, cost: CostModel) -> float:
        """Steps that ranks need in all to be done within ``seconds``: at least the sum of their longest outputs.

        Outputs longer than x lie on some j ranks, which do all their work and more than x steps each. That takes a least j,
        and the sum of the ranks' longest outputs is the integral of j over x.
        """
        shorter = np.append(self.num_tokens[1:], 0.0)
        num_needed = np.ones(len(shorter))
        for compute, memory in cost.faces:
            constants_s = compute * cost.gemm_fixed_s + memory * cost.decode_fixed_s
            left_s = seconds - constants_s * shorter
            work_s = compute * self.compute_s + memory * self.memory_s
            needed = np.divide(work_s, left_s, out=np.full(len(left_s), np.inf), where=left_s > 0)
            num_needed = np.maximum(num_needed, needed)
        return float(((self.num_tokens - shorter) * np.minimum(np.ceil(num_needed), num_ranks)).sum())

    def longest_s(self, cost: CostModel) -> float:
        """Time of the longest output alone, one token a step; every step reads the weights, and the KV there is so far."""
        if len(self.num_tokens) == 0:
            return 0.0
        num_steps = float(self.num_tokens[0])
        memory_s = cost.decode_fixed_s + float(self.memory_s[0]) / num_steps
        return num_steps * float(cost.combine(cost.weights_s + cost.lm_head_weights_s, memory_s))
