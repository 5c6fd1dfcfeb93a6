"""Runs the layers of one step: copies pages, cuts it into nano-batches, lays them out, and starts them on their lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blendserve_core.engine.cuda.attention import AttentionSetting, NanoBatchAttention
from blendserve_core.engine.cuda.batch import MIN_TOKENS_SAVED, BatchArrays, batch_arrays
from blendserve_core.engine.cuda.cut import Cut, choose_cut
from blendserve_core.engine.cuda.graphs import Begin, Capture, DecodeGraphs
from blendserve_core.engine.cuda.lanes import Lanes, LaneSeconds
from blendserve_core.engine.cuda.overlap import NanoBatch, hidden_of, overlapped_program
from blendserve_core.engine.cuda.staging import to_device
from blendserve_core.engine.model.llama import Decoder
from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.overlap import OverlapRates
from blendserve_core.schedule.step import Capacity, StepPlan

# Timing takes two events per operation, and is not possible inside a graph.
TIMED_EVERY = 64


@dataclass(frozen=True, slots=True)
class Overlap:
    """Lanes for steps that stay whole, and for those that are cut, by the multiprocessors that attention gets (0: unsplit)."""

    whole: Lanes
    cut: Mapping[int, Lanes]
    rates: OverlapRates


class StepRunner:
    """Owns what the steps of one engine, or of one rank of it, share. ``capture`` None runs without graphs."""

    def __init__(
        self,
        model: Decoder,
        setting: AttentionSetting,
        capacity: Capacity,
        cost: CostModel,
        overlap: Overlap,
        capture: Capture | None,
        min_tokens_saved: int = MIN_TOKENS_SAVED,
    ) -> None:
        self._model = model
        self._setting = setting
        self._cost = cost
        self._overlap = overlap
        self._min_tokens_saved = min_tokens_saved
        max_listed_pages = capacity.num_pages + capacity.max_sequences
        self._nano_batches = [
            NanoBatch(name, model, NanoBatchAttention(setting, capacity.max_step_tokens, max_listed_pages)) for name in "AB"
        ]
        self._graphs = None if capture is None else DecodeGraphs(model, setting, max_listed_pages, capture)
        self._num_steps = 0

    @torch.inference_mode()
    def run(self, step: StepPlan, sampled_before: Tensor | None = None) -> tuple[Tensor, LaneSeconds | None]:
        """Start a step on the current stream: its sampled rows' hidden states [N, H], and its times where it is a timed one.

        ``sampled_before`` [M] int32 on the device are the tokens that the step before sampled, where this one takes any.
        """
        self._setting.pool.copy_pages(step.copy_src_pages, step.copy_dst_pages)
        page_size = self._setting.pool.page_size
        cut = choose_cut(step, self._cost, self._overlap.rates, tuple(self._overlap.cut), page_size)
        batches = [batch_arrays(step, places, page_size, self._min_tokens_saved) for places in cut.nano_batches]
        nano_batches, seconds = self._start(cut, batches, partial(_begin, sampled_before))
        rows = sampled_rows(step, batches, [nano.attention.num_rows for nano in nano_batches])
        return hidden_of(nano_batches)[to_device(rows, self._setting.device)], seconds

    def _start(self, cut: Cut, batches: list[BatchArrays], begin: Begin) -> tuple[list[NanoBatch], LaneSeconds | None]:
        lanes = self._overlap.whole if len(batches) == 1 else self._overlap.cut[cut.num_attention_sms]
        self._num_steps += 1
        is_timed = self._num_steps % TIMED_EVERY == 1
        if self._graphs is not None and not is_timed:
            replayed = self._graphs.run(lanes, cut.num_attention_sms, batches, begin)
            if replayed is not None:
                return replayed, None
        nano_batches = self._nano_batches[: len(batches)]
        for nano, batch in zip(nano_batches, batches, strict=True):
            begin(nano.attention, batch)
        return nano_batches, lanes.issue(overlapped_program(self._model, nano_batches), is_timed)


def _begin(sampled_before: Tensor | None, attention: NanoBatchAttention, batch: BatchArrays) -> None:
    attention.begin(batch)
    if (batch.token_ids < 0).any():
        assert sampled_before is not None, "tokens of a step that was not run"
        attention.see_tokens(sampled_before)


def sampled_rows(step: StepPlan, batches: list[BatchArrays], num_rows: list[int]) -> NDArray[np.int64]:
    """Rows of the sampled tokens, in the order of the step, where nano-batches of ``num_rows`` stand one behind the other."""
    places, rows, first = [], [], 0
    for batch, num in zip(batches, num_rows, strict=True):
        is_sampled = step.is_sampled[batch.sequences]
        last_rows = batch.row_indptr[1 : batch.num_sequences + 1] - 1
        places.append(batch.sequences[is_sampled])
        rows.append(first + last_rows[is_sampled].astype(np.int64))
        first += num
    return np.concatenate(rows)[np.argsort(np.concatenate(places))]
