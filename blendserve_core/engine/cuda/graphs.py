"""CUDA graphs of decode-only steps, one per split and pair of row counts: a step's launches in one call.

A pair runs as it is until it has come up often enough; then it is captured once and replayed from there on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from blendserve_core.engine.cuda.attention import AttentionSetting, NanoBatchAttention
from blendserve_core.engine.cuda.batch import BatchArrays, padded
from blendserve_core.engine.cuda.lanes import Lanes
from blendserve_core.engine.cuda.overlap import NanoBatch, overlapped_program
from blendserve_core.engine.model.llama import Decoder

BUCKET_ROWS = 64
MIN_OCCURRENCES = 3
MAX_GRAPHS = 48
# What FlashInfer's plans of two nano-batches take on the device, 8 MiB each, and their tables.
GRAPH_BYTES = 20 * 2**20

Replay = Callable[[], None]
Capture = Callable[[Replay], Replay]
"""From a function that starts work on the device to one that starts the same work on the same memory again."""
Begin = Callable[[NanoBatchAttention, BatchArrays], None]
"""Sends a step's arrays to the device."""
GraphKey = tuple[int, tuple[int, ...]]
"""Multiprocessors for attention, and the rows of each nano-batch."""


def cuda_capture() -> Capture:
    """Capture into CUDA graphs that share one pool of memory."""
    pool = torch.cuda.graph_pool_handle()

    def capture(start: Replay) -> Replay:
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on with theirs meanwhile: NCCL's looks after its events.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            start()
        return graph.replay

    return capture


@dataclass(slots=True)
class CapturedStep:
    """Nano-batches of fixed row counts; ``replay`` is None until they are captured."""

    nano_batches: list[NanoBatch]
    replay: Replay | None = None


class DecodeGraphs:
    """Keeps the captured steps of one engine. ``max_listed_pages`` is the most pages that a nano-batch's tables may list."""

    def __init__(self, model: Decoder, setting: AttentionSetting, max_listed_pages: int, capture: Capture) -> None:
        self._model = model
        self._setting = setting
        self._max_listed_pages = max_listed_pages
        self._capture = capture
        self._occurrences: Counter[GraphKey] = Counter()
        self._steps: dict[GraphKey, CapturedStep] = {}

    @property
    def num_captured(self) -> int:
        return sum(step.replay is not None for step in self._steps.values())

    def run(self, lanes: Lanes, num_attention_sms: int, batches: Sequence[BatchArrays], begin: Begin) -> list[NanoBatch] | None:
        """Start a step by replay, or capture it for the next time; None where the step is not one for a graph."""
        if not all(self._is_suitable(batch) for batch in batches):
            return None
        rows = tuple(-(-batch.num_rows // BUCKET_ROWS) * BUCKET_ROWS for batch in batches)
        step = self._step((num_attention_sms, rows))
        if step is None:
            return None
        for nano, batch, num_rows in zip(step.nano_batches, batches, rows, strict=True):
            begin(nano.attention, padded(batch, num_rows, self._setting.pool.padding_page))
        if step.replay is None:
            # This step runs as it is, which also warms its kernels up; capturing runs nothing.
            program = overlapped_program(self._model, step.nano_batches)
            lanes.issue(program, is_timed=False)
            results = [nano.x for nano in step.nano_batches]
            step.replay = self._capture(lambda: _issue(lanes, self._model, step.nano_batches))
            static = [nano.x for nano in step.nano_batches]
            for buffer, result in zip(static, results, strict=True):
                buffer.copy_(result)
        else:
            step.replay()
        return step.nano_batches

    def _is_suitable(self, batch: BatchArrays) -> bool:
        """Decodes alone, without a shared pass (whose groups differ from step to step), whose pages fit."""
        is_decodes = batch.num_decodes == batch.num_sequences
        return is_decodes and not batch.num_shared_rows and len(batch.own.indices) + BUCKET_ROWS <= self._max_listed_pages

    def _step(self, key: GraphKey) -> CapturedStep | None:
        self._occurrences[key] += 1
        if key not in self._steps:
            if self._occurrences[key] < MIN_OCCURRENCES or len(self._steps) == MAX_GRAPHS:
                return None
            attentions = [NanoBatchAttention(self._setting, rows, self._max_listed_pages, rows) for rows in key[1]]
            names = "ABCD"
            self._steps[key] = CapturedStep(
                [NanoBatch(name, self._model, attention) for name, attention in zip(names, attentions, strict=False)]
            )
        return self._steps[key]


def _issue(lanes: Lanes, model: Decoder, nano_batches: list[NanoBatch]) -> None:
    lanes.issue(overlapped_program(model, nano_batches), is_timed=False)
