"""What the planner knows of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import CostModel, causal_pairs, kv_reads
from blendserve_core.perf.optimum import WorkloadTotals
from blendserve_core.plan.lengths import longest_tokens
from blendserve_core.plan.plan import LengthEstimates
from blendserve_core.plan.sharing import shared_by_others
from blendserve_core.plan.tree import PrefixTree


@dataclass(frozen=True, slots=True)
class Workload:
    """A job's tree, prompt lengths [R] and output limits [R], length estimates, and the cost model of its engine."""

    tree: PrefixTree
    num_prompt_tokens: NDArray[np.int32]
    max_tokens: NDArray[np.int32]
    estimates: LengthEstimates
    cost: CostModel

    def compute_s(self, order: NDArray[np.int64], num_cached_tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """[K] compute of the requests in ``order`` [K], given how many prompt tokens each finds cached [K]."""
        return self.cost.compute_s(
            self.num_prompt_tokens[order].astype(np.float64),
            self.estimates.mean_tokens[order].astype(np.float64),
            num_cached_tokens,
        )

    def memory_s(self, order: NDArray[np.int64]) -> NDArray[np.float64]:
        """[K] KV reads of their decodes, a request's part of what it reads with others."""
        return self.cost.memory_s(self._prompt_reads(order), *self._moments(order))

    def kv_reads(self, order: NDArray[np.int64]) -> NDArray[np.float64]:
        """[K] tokens of KV that their decodes read, counted in the same way."""
        return kv_reads(self._prompt_reads(order), *self._moments(order))

    def _prompt_reads(self, order: NDArray[np.int64]) -> NDArray[Any]:
        """[K] prompt tokens that each of a request's decodes reads."""
        return self.cost.prompt_reads(self.num_prompt_tokens[order], *shared_by_others(self.tree, order))

    def _moments(self, order: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        estimates = self.estimates
        return estimates.mean_tokens[order].astype(np.float64), estimates.second_moment[order].astype(np.float64)

    def longest_tokens(self) -> NDArray[np.float64]:
        """[R] how long outputs of each request's kind may get."""
        return longest_tokens(self.estimates, self.max_tokens)

    def totals(self) -> WorkloadTotals:
        """Estimated totals with every shared prefix computed once."""
        tree = self.tree
        return WorkloadTotals(
            num_unique_prompt_tokens=tree.num_unique_tokens,
            num_output_tokens=round(float(self.estimates.mean_tokens.sum(dtype=np.float64))),
            prefill_pairs=float(causal_pairs(tree.end_depth, tree.start_depth).sum()),
            kv_tokens_read=float(self.kv_reads(tree.request_order).sum()),
            longest_output_tokens=round(float(self.longest_tokens().max(initial=0.0))),
        )
