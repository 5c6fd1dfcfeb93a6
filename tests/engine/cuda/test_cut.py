"""When a step is cut, where, and how the multiprocessors are split."""

from __future__ import annotations

import numpy as np
import pytest
from test_cuda_batch import PAGE_SIZE, step_of

from blendserve_core.engine.cuda.cut import choose_cut, step_cost
from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import h200
from blendserve_core.perf.overlap import OverlapRates
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.schedule.step import StepPlan

COST = CostModel(llama_3_8b(), h200())
RATES = OverlapRates()
SPLITS = (24, 40, 56)


def decodes(num: int, context: int, chunk: int = 0) -> StepPlan:
    counts = np.array([1] * num + [chunk] * bool(chunk))
    contexts = np.array([context] * num + [0] * bool(chunk))
    return step_of(counts, contexts, np.zeros(len(counts), np.int64))


def balanced_context(num: int) -> int:
    """At which decode attention takes as long as the GEMMs."""
    compute_s = float(COST.step_compute_s(num, num, 0.0))
    return int((compute_s - COST.decode_fixed_s) / COST.kv_token_s / num)


def test_a_balanced_step_is_cut_into_halves_of_all_sequences_and_gains() -> None:
    step = decodes(1024, balanced_context(1024))
    cut = choose_cut(step, COST, RATES, SPLITS, PAGE_SIZE)
    assert len(cut.nano_batches) == 2
    assert sorted(np.concatenate(cut.nano_batches).tolist()) == list(range(1024))
    assert cut.num_attention_sms in SPLITS
    assert cut.est_s < 0.9 * (cut.compute_s + cut.memory_s)


def test_attention_of_one_part_takes_about_as_long_as_the_gemms_of_the_other() -> None:
    step = decodes(1024, balanced_context(1024))
    cut = choose_cut(step, COST, RATES, SPLITS, PAGE_SIZE)
    costs = step_cost(step, COST)
    first, second = cut.nano_batches
    slower_gemm = RATES.gemm_slowdown(cut.num_attention_sms)
    slower_attention = RATES.attention_slowdown(cut.num_attention_sms)
    gemm_s = slower_gemm * (costs.compute_s[first].sum() + COST.gemm_fixed_s)
    attention_s = slower_attention * costs.memory_s[second].sum()
    assert 0.6 < gemm_s / attention_s < 1.7


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (decodes(200, 4000), "few rows"),
        (decodes(1024, 20), "hardly any attention"),
        (decodes(1024, 60_000), "hardly anything but attention"),
        (decodes(1, 100, chunk=2000), "one decode"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_step_stays_whole_where_overlap_does_not_pay(step: StepPlan, why: str) -> None:
    cut = choose_cut(step, COST, RATES, SPLITS, PAGE_SIZE)
    assert len(cut.nano_batches) == 1, why
    assert cut.est_s == cut.compute_s + cut.memory_s


def test_without_lanes_for_it_nothing_is_cut() -> None:
    assert len(choose_cut(decodes(1024, balanced_context(1024)), COST, RATES, (), PAGE_SIZE).nano_batches) == 1


def test_a_large_chunk_computes_beside_the_decodes() -> None:
    step = decodes(400, 3000, chunk=1600)
    cut = choose_cut(step, COST, RATES, SPLITS, PAGE_SIZE)
    assert len(cut.nano_batches) == 2
    with_chunk = next(part for part in cut.nano_batches if 400 in part)
    assert len(with_chunk) < 400, "most decodes stand in the other part"


def test_more_attention_gets_more_multiprocessors() -> None:
    context = balanced_context(1024)
    few, many = (choose_cut(decodes(1024, int(context * factor)), COST, RATES, SPLITS, PAGE_SIZE) for factor in (0.4, 2.0))
    assert few.num_attention_sms < many.num_attention_sms


def test_readers_of_a_prefix_stay_together() -> None:
    num = 1024
    step = step_of(np.ones(num, np.int64), np.full(num, balanced_context(num)), np.repeat([1, 2], num // 2))
    first, second = choose_cut(step, COST, RATES, SPLITS, PAGE_SIZE).nano_batches
    assert set(step.prefix_nodes[first].tolist()).isdisjoint(step.prefix_nodes[second].tolist())


def test_a_split_slows_gemms_by_what_it_takes_and_attention_only_below_saturation() -> None:
    assert RATES.gemm_slowdown(44) == pytest.approx(1.5)
    assert RATES.attention_slowdown(40) == pytest.approx(1.3)
    assert RATES.attention_slowdown(56) == 1.0
