"""Every attention over paged KV that an engine may use, under one interface and with one name each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from attention_case import NUM_SLOTS
from cuda_on_cpu import attention_setting
from torch import Tensor

from blendserve_core.engine.cpu.attention import PagedAttention, TorchAttention
from blendserve_core.engine.cpu.native import grouping
from blendserve_core.engine.cpu.native.attention import NativeAttention
from blendserve_core.engine.cpu.native.kernels import NativeKernels
from blendserve_core.engine.cpu.native.layout import PAGE_SIZE
from blendserve_core.engine.cpu.native.library import NativeUnavailableError
from blendserve_core.engine.cuda.attention import AttentionSetting, NanoBatchAttention
from blendserve_core.engine.cuda.batch import BatchArrays, batch_arrays
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.perf.cascade import CascadeCosts
from blendserve_core.schedule.step import StepPlan

MakeAttention = Callable[[ModelConfig, int], PagedAttention]


class FlashInferAttention:
    """A whole step as one nano-batch, with its rows in the order of the step."""

    def __init__(self, setting: AttentionSetting) -> None:
        self._setting = setting
        self._attention = NanoBatchAttention(setting, max_rows=64, max_listed_pages=NUM_SLOTS)
        self._batch: BatchArrays
        self._rows: Tensor

    def begin_step(self, step: StepPlan) -> None:
        page_size = self._setting.pool.page_size
        self._batch = batch_arrays(step, np.arange(step.num_sequences), page_size, min_tokens_saved=0)
        spans = [np.arange(step.token_indptr[i], step.token_indptr[i + 1]) for i in self._batch.sequences]
        self._rows = torch.from_numpy(np.concatenate(spans))
        self._attention.begin(self._batch)

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        q = self._attention.append(layer, qkv[self._rows])
        if self._attention.has_chunks:
            self._attention.attend_chunks(layer, q)
        if self._attention.has_decodes:
            self._attention.attend_decodes(layer, q)
        out = torch.empty_like(q)
        out[self._rows] = self._attention.out[: self._attention.num_rows]
        return out.flatten(1)


def torch_attention(config: ModelConfig, page_size: int) -> PagedAttention:
    return TorchAttention(config, NUM_SLOTS // page_size, page_size, torch.float32)


def native_attention(config: ModelConfig, page_size: int) -> PagedAttention:
    if page_size != PAGE_SIZE:
        pytest.skip(f"the native kernels have pages of {PAGE_SIZE} tokens")
    try:
        return NativeAttention(config, NativeKernels(), NUM_SLOTS // page_size, torch.float32, CascadeCosts())
    except NativeUnavailableError as error:
        pytest.skip(str(error))


def flashinfer_attention(config: ModelConfig, page_size: int) -> PagedAttention:
    return FlashInferAttention(attention_setting(config, NUM_SLOTS // page_size, page_size))


BACKENDS: dict[str, MakeAttention] = {
    "torch": torch_attention,
    "native": native_attention,
    "flashinfer stand-in": flashinfer_attention,
}


def share_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the native kernels read shared prefixes in a pass of their own whether that pays or not."""
    monkeypatch.setattr(grouping, "shared_readers", lambda step, _costs: grouping.prefix_readers(step))
