"""How many prompt tokens a step should take, so that it computes for as long as it reads KV."""

from __future__ import annotations

from dataclasses import dataclass

from blendserve_core.perf.cost import CostModel
from blendserve_core.schedule.policy import StepOutcome

SMOOTHING = 0.02
"""Weight of one step in the running mean of observed over predicted times."""


@dataclass(slots=True)
class Correction:
    """Observed over predicted seconds of one resource, a running mean."""

    factor: float = 1.0

    def observe(self, observed_s: float | None, predicted_s: float) -> None:
        if observed_s is not None and predicted_s > 0.0:
            self.factor += SMOOTHING * (observed_s / predicted_s - self.factor)


class Balance:
    """Balances compute against memory, step by step.

    An overlapping engine hides the shorter resource of each step behind the longer one. What it loses against one long step is
    the smaller of two sums: by how much steps compute longer than they read, and by how much others read longer than they
    compute. While both are equal in every step nothing is lost, whatever remains at the end; steps at the ratio of what remains
    are as good only as the estimate of what remains. Predicted times are corrected by measured ones.
    """

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._compute = Correction()
        self._memory = Correction()

    @property
    def is_useful(self) -> bool:
        """Whether the engine overlaps at all. A sequential one loses nothing, and takes all it may."""
        return self._cost.engine == "overlapped"

    def prefill_tokens(self, num_decodes: int, num_kv_tokens_read: int) -> int:
        """Prompt tokens beside these decodes that compute as long as the KV is read, or as the weights are."""
        cost = self._cost
        read_s = self._memory.factor / self._compute.factor * float(cost.step_memory_s(num_kv_tokens_read))
        lm_head_s = max(cost.lm_head_weights_s, cost.lm_head_token_s * num_decodes)
        layers_s = max(read_s - lm_head_s, cost.weights_s)
        return max(0, int((layers_s - cost.gemm_fixed_s) / cost.gemm_token_s) - num_decodes)

    def observe(self, outcome: StepOutcome) -> None:
        """Compare a step's measured times with the predicted ones."""
        num_tokens = outcome.num_decode_tokens + outcome.num_prefill_tokens
        compute_s = float(self._cost.step_compute_s(num_tokens, len(outcome.result.token_ids), 0.0))
        memory_s = float(self._cost.step_memory_s(outcome.num_kv_tokens_read))
        self._compute.observe(outcome.result.compute_s, compute_s)
        self._memory.observe(outcome.result.memory_s, memory_s)
