"""How wide the steps of a CPU engine should be, from the measured cost of a step: a fixed part, and a part per token."""

from __future__ import annotations

from dataclasses import dataclass

from blendserve_core.perf.cost import CostModel

# The share of a full step, and of one of decodes alone, that its fixed part may be: a wider one gains less than that.
STEP_FIXED_SHARE = 0.025
DECODE_FIXED_SHARE = 0.075
# Noise must not decide beyond these, and equal machines should get equal budgets.
STEP_TOKENS_BOUNDS = (256, 4096)
SEQUENCES_BOUNDS = (64, 1024)
ROUNDING = 64
# Activations of a step take at most this share of the free memory; about this many arrays of the widest layer live at once.
ACTIVATION_SHARE = 0.05
NUM_LIVE_ARRAYS = 4
FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class StepBudget:
    max_step_tokens: int = 768
    max_sequences: int = 256


def step_budget(cost: CostModel, available_bytes: int) -> StepBudget:
    """The narrowest steps whose fixed part is a small share of their time, within bounds and the memory of activations."""
    fixed_tokens = max(cost.gemm_fixed_s, cost.weights_s) / cost.gemm_token_s
    model = cost.model
    token_bytes = NUM_LIVE_ARRAYS * FLOAT32_BYTES * max(2 * model.intermediate_size, model.query_width, model.hidden_size)
    affordable = max(ROUNDING, int(ACTIVATION_SHARE * available_bytes) // token_bytes // ROUNDING * ROUNDING)
    return StepBudget(
        max_step_tokens=min(affordable, _tokens_for(fixed_tokens, STEP_FIXED_SHARE, STEP_TOKENS_BOUNDS)),
        max_sequences=min(affordable, _tokens_for(fixed_tokens, DECODE_FIXED_SHARE, SEQUENCES_BOUNDS)),
    )


def _tokens_for(fixed_tokens: float, share: float, bounds: tuple[int, int]) -> int:
    """Tokens of a step in which a fixed part worth ``fixed_tokens`` is ``share`` of the whole."""
    least, most = bounds
    tokens = min(max(fixed_tokens * (1 - share) / share, least), most)
    return -(-int(tokens) // ROUNDING) * ROUNDING
