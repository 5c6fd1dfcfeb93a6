"""How fast a workload could run at best, from its lengths and the cost model alone (paper section 3.3).

Two yardsticks. The practical optimum spreads a step's constants over large steps, as if every step were as full as the paper's
Table 1; no schedule attains it. The reachable time is a lower bound: at least so many steps must happen, each with its
constants, and a step's time is a convex function of its load. (It counts each request's last token as if it were fed back,
which puts it above the strict bound by less than 0.5 % on the paper's traces.) With several ranks,
:mod:`blendserve_core.perf.rank_bound` says how many steps they need in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import CostModel, causal_pairs, kv_reads

REFERENCE_STEP_TOKENS = 1024
REFERENCE_KV_TOKENS = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WorkloadTotals:
    """Sums over a workload with every shared prefix computed once, and its longest output.

    ``prefill_pairs`` are (query, key) pairs of prefill attention, ``kv_tokens_read`` the context tokens all decodes read.
    """

    num_unique_prompt_tokens: int
    num_output_tokens: int
    prefill_pairs: float
    kv_tokens_read: float
    longest_output_tokens: int

    @classmethod
    def of(
        cls,
        start_depth: NDArray[Any],
        end_depth: NDArray[Any],
        num_prompt_tokens: NDArray[Any],
        num_output_tokens: NDArray[Any],
    ) -> WorkloadTotals:
        """Totals of requests with these lengths [R] (outputs: the true ones) and these tree nodes' depths [N]."""
        return cls(
            num_unique_prompt_tokens=int((end_depth - start_depth).sum(dtype=np.int64)),
            num_output_tokens=int(num_output_tokens.sum(dtype=np.int64)),
            prefill_pairs=float(causal_pairs(end_depth, start_depth).sum()),
            kv_tokens_read=float(kv_reads(num_prompt_tokens, num_output_tokens).sum()),
            longest_output_tokens=int(num_output_tokens.max(initial=0)),
        )


def practical_optimum_s(totals: WorkloadTotals, cost: CostModel, num_ranks: int = 1) -> float:
    """The practical optimum T_o: both resources' totals at the rates of a step with 1024 tokens and 1024 x 1024 KV reads."""
    token_s = cost.gemm_token_s + cost.gemm_fixed_s / REFERENCE_STEP_TOKENS
    kv_token_s = cost.kv_token_s + cost.decode_fixed_s / REFERENCE_KV_TOKENS
    return float(cost.combine(_compute_s(totals, cost, token_s), kv_token_s * totals.kv_tokens_read)) / num_ranks


def min_steps(totals: WorkloadTotals, cost: CostModel) -> float:
    """Steps that must happen on one rank: all KV reads at a full pool, or one after another for the longest output."""
    return max(totals.kv_tokens_read / cost.kv_capacity_tokens, float(totals.longest_output_tokens))


def reachable_s(totals: WorkloadTotals, cost: CostModel) -> float:
    """The reachable time T_reach, a lower bound on the time of one rank."""
    return time_with_steps_s(totals, cost, min_steps(totals, cost))


def time_with_steps_s(totals: WorkloadTotals, cost: CostModel, num_steps: float) -> float:
    """Least time of one rank that does the whole work in at least ``num_steps`` steps, each with its constants."""
    compute_s = _compute_s(totals, cost, cost.gemm_token_s) + cost.gemm_fixed_s * num_steps
    memory_s = cost.kv_token_s * totals.kv_tokens_read + cost.decode_fixed_s * num_steps
    return float(cost.combine(compute_s, memory_s))


def _compute_s(totals: WorkloadTotals, cost: CostModel, token_s: float) -> float:
    num_tokens = totals.num_unique_prompt_tokens + totals.num_output_tokens
    return token_s * num_tokens + cost.lm_head_token_s * totals.num_output_tokens + cost.attention_pair_s * totals.prefill_pairs
