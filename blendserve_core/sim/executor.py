"""An executor that runs step plans on a cost model's clock. It alone knows when each request really ends."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from blendserve_core.perf.cost import CostModel
from blendserve_core.schedule.step import Capacity, StepPlan, StepResult
from blendserve_core.sim.steps import StepRecorder

FILLER_TOKEN_ID = 0


def simulated_capacity(
    cost: CostModel, *, page_size: int = 16, max_step_tokens: int = 2048, max_sequences: int = 4096
) -> Capacity:
    """What the cost model's devices hold beside the weights, as an engine would report it."""
    num_pages = cost.kv_capacity_tokens // page_size
    return Capacity(num_pages, page_size, max_step_tokens, max_sequences, max_sequence_tokens=num_pages * page_size)


class SimulatedExecutor:
    """Executor whose seconds come from ``cost`` and whose sequences end at their true length.

    A sampled row gets ``eos_token_id`` where it completes its ``true_output_tokens`` [R] (indexed by request), else token 0.
    Where the cost model has ``cascade`` a prefix that several decodes of a step share is read once.
    """

    def __init__(
        self,
        cost: CostModel,
        true_output_tokens: NDArray[Any],
        eos_token_id: int,
        capacity: Capacity,
        *,
        recorder: StepRecorder | None = None,
    ) -> None:
        if eos_token_id == FILLER_TOKEN_ID:
            raise ValueError(f"eos_token_id is {eos_token_id}, which every unfinished sequence gets; use another id")
        self._cost = cost
        self._true_output_tokens = np.ascontiguousarray(true_output_tokens, dtype=np.int64)
        self._eos_token_id = eos_token_id
        self._capacity = capacity
        self._recorder = recorder
        self._page_seen = np.zeros(capacity.num_pages, dtype=np.int64)

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def execute(self, step: StepPlan) -> StepResult:
        num_decodes, num_sampled, kv_tokens_read, prefill_pairs = step_load(step, cascade=self._cost.cascade)
        compute_s = float(self._cost.step_compute_s(step.num_tokens, num_sampled, prefill_pairs))
        memory_s = float(self._cost.step_memory_s(kv_tokens_read))
        seconds = float(self._cost.combine(compute_s, memory_s))
        if self._recorder is not None:
            self._recorder.append(
                num_prefill_tokens=step.num_tokens - num_decodes,
                num_decodes=num_decodes,
                num_sampled=num_sampled,
                kv_tokens_read=kv_tokens_read,
                prefill_pairs=prefill_pairs,
                seconds=seconds,
                tc_s=compute_s,
                tm_s=memory_s,
                kv_tokens_held=self._kv_tokens_held(step),
            )
        return StepResult(self._sample(step), seconds, compute_s, memory_s)

    def close(self) -> None:
        """Nothing to release."""

    def _sample(self, step: StepPlan) -> NDArray[np.int32]:
        sampled = step.is_sampled
        is_last = step.num_outputs[sampled] + 1 >= self._true_output_tokens[step.seq_ids[sampled]]
        return np.where(is_last, self._eos_token_id, FILLER_TOKEN_ID).astype(np.int32)

    def _kv_tokens_held(self, step: StepPlan) -> int:
        """Tokens in the distinct pages of the step's sequences; only last pages, which nobody shares, have room left."""
        num_pages = _count_distinct(step.page_indices, self._page_seen)
        page_size = self._capacity.page_size
        return num_pages * page_size - int((page_size - step.last_page_lens).sum())


def step_load(step: StepPlan, *, cascade: bool = False) -> tuple[int, int, int, int]:
    """(decodes, sampled rows, KV tokens the decodes read, (query, key) pairs of the prefills) of a step."""
    load = _step_load(step.token_indptr, step.context_lens, step.is_sampled, step.num_outputs)
    num_decodes, num_sampled, kv_tokens_read, prefill_pairs = (int(value) for value in load)
    if cascade:
        kv_tokens_read -= _shared_reads(step.prefix_nodes[:num_decodes], step.prefix_lens[:num_decodes])
    return num_decodes, num_sampled, kv_tokens_read, prefill_pairs


def _shared_reads(prefix_nodes: NDArray[np.int32], prefix_lens: NDArray[np.int32]) -> int:
    """KV reads saved when each prefix is read once for all the decodes that share it."""
    is_shared = prefix_nodes >= 0
    _, first = np.unique(prefix_nodes[is_shared], return_index=True)
    lens = prefix_lens[is_shared].astype(np.int64)
    return int(lens.sum() - lens[first].sum())


@numba.njit(cache=True)
def _step_load(token_indptr, context_lens, is_sampled, num_outputs):
    num_decodes = num_sampled = kv_tokens_read = prefill_pairs = 0
    for i in range(len(context_lens)):
        num_new = np.int64(token_indptr[i + 1] - token_indptr[i])
        context = np.int64(context_lens[i])
        num_sampled += is_sampled[i]
        if num_new == 1 and is_sampled[i] and num_outputs[i] > 0:
            num_decodes += 1
            kv_tokens_read += context + 1
        else:
            prefill_pairs += num_new * context + num_new * (num_new + 1) // 2
    return num_decodes, num_sampled, kv_tokens_read, prefill_pairs


@numba.njit(cache=True)
def _count_distinct(pages, seen):
    count = 0
    for page in pages:
        if seen[page] == 0:
            seen[page] = 1
            count += 1
    for page in pages:
        seen[page] = 0
    return count
