"""Whether to overlap a step, where to cut it into two nano-batches, and how to split the multiprocessors, by the cost model.

Per layer, decode attention of B runs beside the GEMMs of A, and the other way round, so a cut costs
max(gemm(A), attention(B)) + max(gemm(B), attention(A)), each slowed by what the split leaves it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.engine.cpu.layout import num_new_tokens
from blendserve_core.engine.cuda.same_step import same_step_reads, splits_no_read
from blendserve_core.perf.cost import CostModel, causal_pairs
from blendserve_core.perf.overlap import OverlapRates
from blendserve_core.schedule.step import StepPlan

MIN_OVERLAPPED_ROWS = 256
# Times that differ more than this leave little to hide.
MAX_IMBALANCE = 4.0
# GEMMs work in tiles of so many rows: a nano-batch pays for whole ones.
TILE_ROWS = 64


@dataclass(frozen=True, slots=True)
class Cut:
    """Places in the StepPlan of one nano-batch or two, and the multiprocessors for attention (0 leaves them unsplit).

    ``compute_s`` and ``memory_s`` are the whole step's own times on the whole device, ``est_s`` what it takes when run so.
    """

    nano_batches: tuple[NDArray[np.int64], ...]
    num_attention_sms: int
    compute_s: float
    memory_s: float
    est_s: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of each sequence [S] on the whole device: GEMMs and prefill attention, and decode attention."""

    compute_s: NDArray[np.float64]
    memory_s: NDArray[np.float64]
    num_rows: NDArray[np.int32]


def step_cost(step: StepPlan, cost: CostModel) -> StepCost:
    num_rows = num_new_tokens(step)
    is_decode = num_rows == 1
    ends = step.context_lens + num_rows
    pairs = np.where(is_decode, 0.0, causal_pairs(ends, step.context_lens))
    return StepCost(
        compute_s=cost.gemm_token_s * num_rows + cost.attention_pair_s * pairs,
        memory_s=np.where(is_decode, cost.kv_token_s * ends, 0.0),
        num_rows=num_rows,
    )


def choose_cut(step: StepPlan, cost: CostModel, rates: OverlapRates, sm_choices: tuple[int, ...], page_size: int) -> Cut:
    """The cheapest way to run a step; ``sm_choices`` are splits to choose from, 0 for streams without a split.

    Without a choice, or where overlap does not pay, the step stays whole.
    """
    costs = step_cost(step, cost)
    everything = np.arange(step.num_sequences)
    num_sampled, num_tokens = int(step.is_sampled.sum()), step.num_tokens
    compute_s = float(cost.step_compute_s(num_tokens, num_sampled, 0.0)) + float(
        costs.compute_s.sum() - cost.gemm_token_s * num_tokens
    )
    memory_s = float(costs.memory_s.sum()) + cost.decode_fixed_s * bool(costs.memory_s.any())
    best = Cut((everything,), 0, compute_s, memory_s, compute_s + memory_s)
    if not sm_choices or step.num_tokens < MIN_OVERLAPPED_ROWS or not _is_balanced(compute_s, memory_s):
        return best
    for order, is_boundary in _orders(step, costs, page_size):
        for num_sms in sm_choices:
            place, seconds = _best_place(costs, order, is_boundary, cost, rates, num_sms)
            if seconds < best.est_s:
                best = Cut((np.sort(order[:place]), np.sort(order[place:])), num_sms, compute_s, memory_s, seconds)
    return best


def _is_balanced(compute_s: float, memory_s: float) -> bool:
    return max(compute_s, memory_s) <= MAX_IMBALANCE * min(compute_s, memory_s)


def _orders(step: StepPlan, costs: StepCost, page_size: int) -> list[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Two orders to cut: chunks first, and chunks last, behind decodes that are kept together by shared prefix.

    With each, whether a cut before place i leaves no group of readers in two, and nobody before those whose tokens it reads.
    """
    readers, writers = same_step_reads(step, page_size)
    is_prompt = costs.num_rows > 1
    # Requests enter behind those that began their prefix, so in the order of the step they stand behind them.
    is_prompt[readers] = True
    nodes = np.where(is_prompt, -1, step.prefix_nodes)
    orders = []
    for prompt_key in (~is_prompt, is_prompt):
        order = np.lexsort((nodes, prompt_key))
        sorted_nodes = nodes[order]
        is_boundary = np.concatenate([[False], (sorted_nodes[1:] != sorted_nodes[:-1]) | (sorted_nodes[1:] < 0)])
        orders.append((order, is_boundary & splits_no_read(order, readers, writers)))
    return orders


def _best_place(
    costs: StepCost,
    order: NDArray[np.int64],
    is_boundary: NDArray[np.bool_],
    cost: CostModel,
    rates: OverlapRates,
    num_sms: int,
) -> tuple[int, float]:
    """Where to cut ``order`` into a first and a second nano-batch, and the step's seconds then; infinity without a place."""
    places = np.flatnonzero(is_boundary)
    if not len(places):
        return 0, float("inf")
    rows_a = np.cumsum(costs.num_rows[order])[places - 1]
    num_rows = int(costs.num_rows.sum())
    compute_a, memory_a = (np.cumsum(values[order])[places - 1] for values in (costs.compute_s, costs.memory_s))
    compute_b, memory_b = costs.compute_s.sum() - compute_a, costs.memory_s.sum() - memory_a
    slower_gemm, slower_attention = rates.gemm_slowdown(num_sms), rates.attention_slowdown(num_sms)
    gemm_a = slower_gemm * _gemm_s(compute_a, rows_a, cost)
    gemm_b = slower_gemm * _gemm_s(compute_b, num_rows - rows_a, cost)
    attention_a = slower_attention * (memory_a + cost.decode_fixed_s * (memory_a > 0))
    attention_b = slower_attention * (memory_b + cost.decode_fixed_s * (memory_b > 0))
    seconds = np.maximum(gemm_a, attention_b) + np.maximum(gemm_b, attention_a) + cost.lm_head_weights_s
    best = int(seconds.argmin())
    return int(places[best]), float(seconds[best])


def _gemm_s(compute_s: NDArray[np.float64], num_rows: NDArray[np.signedinteger], cost: CostModel) -> NDArray[np.float64]:
    """Of a nano-batch: its rows rounded up to whole tiles, and its own pass over the weights."""
    num_padding = -num_rows % TILE_ROWS
    return np.maximum(compute_s + cost.gemm_token_s * num_padding + cost.gemm_fixed_s, cost.weights_s)
