"""How many prompt tokens a step should take, so that compute and memory run out together."""

from __future__ import annotations

from dataclasses import dataclass

from blendserve_core.perf.cost import CostModel
from blendserve_core.schedule.policy import Load, StepOutcome

SMOOTHING = 0.02
"""Weight of one step in the running mean of observed over predicted times."""


@dataclass(slots=True)
class Correction:
    """Observed over predicted seconds of one resource, a running mean."""

    factor: float = 1.0

    def observe(self, observed_s: float | None, predicted_s: float) -> None:
        if observed_s is not None and predicted_s > 0.0:
            self.factor += SMOOTHING * (observed_s / predicted_s - self.factor)


class RatioControl:
    """Chooses the prefill tokens of a step so that Tc_step = Tm_step * (remaining Tc / remaining Tm).

    An overlapping engine loses whatever one resource idles; a sequential one loses nothing, and takes all it may. Remaining
    times are estimates of the whole shard less what was observed so far; predicted step times are corrected by measured ones
    where an executor reports them.
    """

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._remaining_compute_s = 0.0
        self._remaining_memory_s = 0.0
        self._compute = Correction()
        self._memory = Correction()

    def add(self, compute_s: float, memory_s: float) -> None:
        """There is this much more to do."""
        self._remaining_compute_s += compute_s
        self._remaining_memory_s += memory_s

    def prefill_tokens(self, load: Load, max_prefill_tokens: int) -> int:
        """Prompt tokens of this step, 0..max_prefill_tokens."""
        if self._cost.engine == "sequential" or self._remaining_memory_s <= 0.0:
            return max_prefill_tokens
        return min(max_prefill_tokens, self.prefill_tokens_at(load.num_kv_tokens_read, load))

    def prefill_tokens_at(self, num_kv_tokens_read: int, load: Load) -> int:
        """Prompt tokens that balance a step with these KV reads and the load's decodes."""
        if self._remaining_memory_s <= 0.0:
            return 0
        memory_s = self._memory.factor * float(self._cost.step_memory_s(num_kv_tokens_read))
        target_s = memory_s * max(self._remaining_compute_s, 0.0) / self._remaining_memory_s
        decode_s = float(self._cost.step_compute_s(load.num_decode_tokens, load.num_decode_tokens, 0.0))
        num_tokens = (target_s / self._compute.factor - decode_s) / self._cost.gemm_token_s
        return max(0, int(num_tokens))

    def observe(self, outcome: StepOutcome) -> None:
        """Take a step's work off what remains, and compare its measured times with the predicted ones."""
        num_tokens = outcome.num_decode_tokens + outcome.num_prefill_tokens
        num_sampled = len(outcome.result.token_ids)
        compute_s = float(self._cost.step_compute_s(num_tokens, num_sampled, 0.0))
        memory_s = float(self._cost.step_memory_s(outcome.num_kv_tokens_read))
        self._compute.observe(outcome.result.compute_s, compute_s)
        self._memory.observe(outcome.result.memory_s, memory_s)
        self._remaining_compute_s -= self._cost.gemm_token_s * num_tokens + self._cost.lm_head_token_s * num_sampled
        self._remaining_memory_s -= self._cost.kv_token_s * outcome.num_kv_tokens_read
