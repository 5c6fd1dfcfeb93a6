"""Attention, a full step and whole texts on the device, against float32."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from random_model import TINY, random_model_folder
from torch import Tensor

from blendserve_core.engine.cpu.attention import TorchAttention
from blendserve_core.engine.cpu.attention_times import plain_step
from blendserve_core.engine.cuda.attention import AttentionSetting, NanoBatchAttention
from blendserve_core.engine.cuda.batch import batch_arrays
from blendserve_core.engine.cuda.kernels import Kernels
from blendserve_core.engine.cuda.kv_pool import DeviceKVPool
from blendserve_core.engine.cuda.load import load_cuda_executor
from blendserve_core.engine.cuda.workspaces import Workspaces
from blendserve_core.engine.load import load_cpu_executor
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.ops import TorchOps
from blendserve_core.engine.model.weights import load_decoder
from blendserve_core.kv.segments import no_segments
from blendserve_core.requests import RequestTable, SamplingColumns
from blendserve_core.run import run_steps
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.schedule.step import Executor
from schemas.parameters import EngineOptions

PAGE_SIZE = 16
NUM_OUTPUTS = 24
# bfloat16 operands, relative to the whole result.
TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: the relative error, or the share of tokens that are equal, and whether that will do."""

    name: str
    value: float
    is_good: bool


def relative_error(found: Tensor, expected: Tensor) -> float:
    """NaN where there is one, so that no comparison with it passes."""
    difference = found.float().cpu() - expected.float().cpu()
    return float(difference.norm() / expected.float().norm())


def check_attention(kernels: Kernels, device: torch.device, dtype: torch.dtype) -> list[Check]:
    """Decodes, a chunk behind a context, and a shared prefix, each against the float32 reference on the same KV."""
    config = ModelConfig.from_dict(TINY | {"num_hidden_layers": 1, "head_dim": 128})
    checks = []
    for name, num_new, context, is_shared in (
        ("decode", 1, 1000, False),
        ("chunk", 300, 700, False),
        ("shared prefix", 1, 1000, True),
    ):
        step = plain_step(6, num_new, context)
        if is_shared:
            step.prefix_nodes[:], step.prefix_lens[:] = 1, 512
            pages = step.page_indices.reshape(6, -1)
            pages[:, : 512 // PAGE_SIZE] = pages[0, : 512 // PAGE_SIZE]
        error = attention_error(config, kernels, step, device, dtype)
        checks.append(Check(f"attention, {name}", error, error < TOLERANCE))
    return checks


def attention_error(config: ModelConfig, kernels: Kernels, step, device: torch.device, dtype: torch.dtype) -> float:
    num_pages = int(step.page_indices.max()) + 1
    pool = DeviceKVPool(config, num_pages, PAGE_SIZE, dtype, device)
    pages = torch.randn(pool.layer(0).shape).to(dtype)
    pool.layer(0).copy_(pages)
    setting = AttentionSetting.make(kernels, config, pool, Workspaces.allocate(device), dtype, device)
    attention = NanoBatchAttention(setting, step.num_tokens, len(step.page_indices))
    attention.begin(batch_arrays(step, np.arange(step.num_sequences), PAGE_SIZE, min_tokens_saved=0))
    qkv = torch.randn(step.num_tokens, config.num_heads + 2 * config.num_kv_heads, config.head_dim).to(dtype)
    with torch.inference_mode():
        q = attention.append(0, qkv.to(device, copy=True))
        if attention.has_chunks:
            attention.attend_chunks(0, q)
        if attention.has_decodes:
            attention.attend_decodes(0, q)
    # Sequences of one kind keep their order, so rows need no sorting.
    return relative_error(attention.out[: step.num_tokens].flatten(1), _reference(config, step, pages, qkv))


def _reference(config: ModelConfig, step, pages: Tensor, qkv: Tensor) -> Tensor:
    """The CPU engine's reference, on the same pages in float32."""
    reference = TorchAttention(config, len(pages) - 1, PAGE_SIZE, torch.float32)
    slots = torch.arange((len(pages) - 1) * PAGE_SIZE)
    keys, values = pages[:-1].float().transpose(0, 1).flatten(1, 2)
    reference._pool.append(0, slots, keys, values)
    reference.begin_step(step)
    return reference.attend(0, qkv.float())


def check_tokens(folder: Path, kernels, is_on_gpu: bool) -> list[Check]:
    """A step's hidden states and greedy texts of a tiny model, against the CPU engine's in float32."""
    random_model_folder(folder, TINY)
    requests = _requests(24)
    options = EngineOptions(kv_cache_tokens=32768, max_sequences=64, max_step_tokens=512, device="cpu", kernels="torch")
    expected = greedy_texts(load_cpu_executor(folder, requests, "float32", options), requests)
    dtype = "bfloat16" if is_on_gpu else "float32"
    executor = load_cuda_executor(folder, requests, dtype, options, kernels=kernels, is_on_gpu=is_on_gpu)
    found = greedy_texts(executor, requests)
    num_equal = sum(_common_length(found[request], expected[request]) for request in expected)
    share = num_equal / (NUM_OUTPUTS * len(expected))
    # In 16 bits near-equal tokens change places, and a text goes its own way from there.
    error = _hidden_error(folder, kernels(), torch.device("cuda" if is_on_gpu else "cpu"), getattr(torch, dtype))
    return [
        Check("hidden states of a step", error, error < 5 * TOLERANCE),
        Check("greedy tokens before a text parts", share, share > 0.5),
    ]


def _hidden_error(folder: Path, kernels: Kernels, device: torch.device, dtype: torch.dtype) -> float:
    from blendserve_core.engine.cuda.ops import FlashInferOps
    from blendserve_core.engine.cuda.overlap import NanoBatch
    from blendserve_core.engine.parallel.group import OneRank
    from blendserve_core.engine.parallel.weights import load_part

    step = plain_step(3, 90)
    exact = load_decoder(folder, TorchOps(), torch.float32)
    attention = TorchAttention(exact.config, 64, PAGE_SIZE, torch.float32)
    model = load_part(folder, FlashInferOps(kernels), dtype, OneRank(), str(device))
    pool = DeviceKVPool(model.config, 64, PAGE_SIZE, dtype, device)
    setting = AttentionSetting.make(kernels, model.config, pool, Workspaces.allocate(device), dtype, device)
    nano = NanoBatch("A", model, NanoBatchAttention(setting, step.num_tokens, 64))
    with torch.inference_mode():
        attention.begin_step(step)
        expected = exact.forward(torch.from_numpy(step.token_ids), attention.attend)
        nano.attention.begin(batch_arrays(step, np.arange(3), PAGE_SIZE))
        nano.embed()
        for layer in range(model.config.num_layers):
            nano.qkv(layer)
            nano.project(layer)
            nano.mlp(layer)
            nano.norm(layer)
    return relative_error(nano.x, expected)


def greedy_texts(executor: Executor, requests: RequestTable) -> dict[int, list[int]]:
    """Every request's output, through the real scheduler."""
    order = np.arange(requests.num_requests)
    scheduler = Scheduler(
        requests, order, no_segments(requests.num_requests), order, OrderedAdmission(order), executor.capacity, ()
    )
    texts = {}
    for record in run_steps(scheduler, executor):
        texts |= {finished.request: finished.token_ids.tolist() for finished in record.finished}
    executor.close()
    return texts


def _requests(num: int) -> RequestTable:
    rng = np.random.default_rng(0)
    lens = rng.integers(5, 200, num).astype(np.int32)
    return RequestTable(
        row=np.arange(num),
        sample_index=np.zeros(num, np.int32),
        prompt_start=np.cumsum(lens, dtype=np.int64) - lens,
        num_prompt_tokens=lens,
        token_ids=rng.integers(0, TINY["vocab_size"], int(lens.sum())).astype(np.int32),
        sampling=SamplingColumns.greedy(num, NUM_OUTPUTS, ignore_eos=True),
    )


def _common_length(first: list[int], second: list[int]) -> int:
    for place, (a, b) in enumerate(zip(first, second, strict=True)):
        if a != b:
            return place
    return len(first)
