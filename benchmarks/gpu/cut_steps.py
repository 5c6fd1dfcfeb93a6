"""A step that is cut in two gives what it gives whole, on whichever lanes it runs, captured or not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from correctness import TOLERANCE, Check, relative_error
from numpy.typing import NDArray
from random_model import TINY, random_model_folder
from torch import Tensor

from blendserve_core.engine.cpu.attention_times import plain_step
from blendserve_core.engine.cuda.attention import AttentionSetting, NanoBatchAttention
from blendserve_core.engine.cuda.batch import batch_arrays
from blendserve_core.engine.cuda.graphs import Capture
from blendserve_core.engine.cuda.kernels import Kernels
from blendserve_core.engine.cuda.kv_pool import DeviceKVPool
from blendserve_core.engine.cuda.lanes import Lanes
from blendserve_core.engine.cuda.ops import FlashInferOps
from blendserve_core.engine.cuda.overlap import NanoBatch, hidden_of, overlapped_program
from blendserve_core.engine.cuda.workspaces import Workspaces
from blendserve_core.engine.model.llama import Decoder
from blendserve_core.engine.parallel.group import OneRank
from blendserve_core.engine.parallel.weights import load_part

PAGE_SIZE = 16
NUM_DECODES, CONTEXT = 96, 300


def check_cut_steps(
    folder: Path, kernels: Kernels, device: torch.device, dtype: torch.dtype, whole: Lanes, others: Mapping[str, Lanes],
    capture: Capture,
) -> list[Check]:  # fmt: skip
    """Hidden states of decodes in halves, on ``others`` by name, against those of the step on ``whole``."""
    random_model_folder(folder, TINY)
    model = load_part(folder, FlashInferOps(kernels), dtype, OneRank(), str(device))
    setting = _setting(model, kernels, device, dtype)
    everything = np.arange(NUM_DECODES)
    halves = np.array_split(everything, 2)
    expected = _hidden(model, setting, [everything], whole, None)
    checks = []
    for name, lanes in others.items():
        for how, maybe_capture in (("", None), (", captured", capture)):
            error = relative_error(_hidden(model, setting, halves, lanes, maybe_capture), expected)
            checks.append(Check(f"cut step, {name}{how}", error, error < 2 * TOLERANCE))
    return checks


@torch.inference_mode()
def _hidden(
    model: Decoder, setting: AttentionSetting, parts: list[NDArray[np.int64]], lanes: Lanes, capture: Capture | None
) -> Tensor:
    """Of every row. A captured step runs as it is first, and what counts is its replay."""
    step = plain_step(NUM_DECODES, 1, CONTEXT)
    step.token_ids[:] = np.arange(NUM_DECODES)
    nano_batches = []
    for name, places in zip("AB", parts, strict=False):
        nano = NanoBatch(name, model, NanoBatchAttention(setting, len(places), len(step.page_indices)))
        nano.attention.begin(batch_arrays(step, places, PAGE_SIZE))
        nano_batches.append(nano)

    def start() -> None:
        lanes.issue(overlapped_program(model, nano_batches), is_timed=False)

    start()
    if capture is not None:
        capture(start)()
    return hidden_of(nano_batches).clone()


def _setting(model: Decoder, kernels: Kernels, device: torch.device, dtype: torch.dtype) -> AttentionSetting:
    """Over a KV pool with random contents."""
    num_pages = len(plain_step(NUM_DECODES, 1, CONTEXT).page_indices)
    pool = DeviceKVPool(model.config, num_pages, PAGE_SIZE, dtype, device)
    for layer in range(model.config.num_layers):
        pool.layer(layer).copy_(torch.randn(pool.layer(layer).shape, dtype=dtype, device=device))
    return AttentionSetting.make(kernels, model.config, pool, Workspaces.allocate(device), dtype, device)
