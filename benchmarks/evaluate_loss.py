"""Where a run's seconds beyond T_reach went, and how busy both resources were, from its recorded steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import CostModel
from blendserve_core.sim.steps import StepRecorder

FULL_KV = 0.9
NUM_SLICES = 120
LOSSES = ("wrong_bottleneck", "step_constants", "ramp", "tail", "recomputation")


def loss_split(recorder: StepRecorder, cost: CostModel, reachable_s: float, num_recomputed_tokens: int) -> dict[str, float]:
    """Seconds of one shard's run beyond T_reach by cause; they add up exactly.

    wrong_bottleneck  steps that spent more on one resource than the whole run did on balance, while memory was in use
    ramp, tail        the same before KV was first filled to 90 %, and after the last prompt token
    recomputation     compute of retracted sequences that began anew
    step_constants    what is left: constants of more steps than must happen, and prefixes computed more than once
    """
    seconds, tc_s, tm_s = (recorder.column(name) for name in ("seconds", "tc_s", "tm_s"))
    balanced_s = float(cost.combine(tc_s.sum(), tm_s.sum()))
    lost_s = seconds - _share_of_balanced(cost, tc_s, tm_s)
    full = np.flatnonzero(recorder.column("kv_tokens_held") >= FULL_KV * cost.kv_capacity_tokens)
    ramp_end = int(full[0]) if len(full) else 0
    tail_start = max(ramp_end, int(np.flatnonzero(recorder.column("num_prefill_tokens"))[-1]) + 1)
    recomputation_s = cost.gemm_token_s * num_recomputed_tokens
    return {
        "wrong_bottleneck": float(lost_s[ramp_end:tail_start].sum()),
        "step_constants": balanced_s - reachable_s - recomputation_s,
        "ramp": float(lost_s[:ramp_end].sum()),
        "tail": float(lost_s[tail_start:].sum()),
        "recomputation": recomputation_s,
    }


def _share_of_balanced(cost: CostModel, tc_s: NDArray[np.float64], tm_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each step adds to ``combine(sum of Tc, sum of Tm)``."""
    shorter = 1.0 if cost.engine == "sequential" else cost.interference
    compute, memory = (1.0, shorter) if tc_s.sum() >= tm_s.sum() else (shorter, 1.0)
    return compute * tc_s + memory * tm_s


def resource_use(recorder: StepRecorder) -> dict[str, list[float]]:
    """Shares of time that compute and memory are busy, in equal slices of the run."""
    seconds = recorder.column("seconds")
    end = np.cumsum(seconds)
    slices = np.minimum((end / end[-1] * NUM_SLICES).astype(int), NUM_SLICES - 1)
    total = np.maximum(np.bincount(slices, seconds, NUM_SLICES), 1e-12)
    busy = {name: np.bincount(slices, recorder.column(name), NUM_SLICES) / total for name in ("tc_s", "tm_s")}
    return {name: np.round(np.minimum(share, 1), 4).tolist() for name, share in busy.items()}
