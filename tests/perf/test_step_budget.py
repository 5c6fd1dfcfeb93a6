"""Steps are as wide as a machine's fixed cost of a step asks for."""

from __future__ import annotations

from dataclasses import replace

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import cpu
from blendserve_core.perf.presets import model_spec
from blendserve_core.perf.step_budget import SEQUENCES_BOUNDS, STEP_TOKENS_BOUNDS, StepBudget, step_budget

PLENTY = 2**40
MODEL = model_spec("llama-3-8b")


def budget_at(weight_bytes_per_s: float, available_bytes: int = PLENTY) -> StepBudget:
    hardware = replace(cpu(memory_bytes=64e9), gemm_flops_per_s=300e9, weight_bytes_per_s=weight_bytes_per_s)
    return step_budget(CostModel(MODEL, hardware, engine="sequential"), available_bytes)


def test_the_larger_the_fixed_part_the_wider_the_steps() -> None:
    slow, fast = budget_at(5e9), budget_at(12e9)
    assert slow.max_step_tokens > fast.max_step_tokens
    assert slow.max_sequences > fast.max_sequences


def test_extreme_measurements_stay_within_bounds() -> None:
    assert budget_at(1e15) == StepBudget(STEP_TOKENS_BOUNDS[0], SEQUENCES_BOUNDS[0])
    assert budget_at(1e3) == StepBudget(STEP_TOKENS_BOUNDS[1], SEQUENCES_BOUNDS[1])


def test_little_memory_narrows_the_steps() -> None:
    assert budget_at(5e9, available_bytes=2**20) == StepBudget(64, 64)
