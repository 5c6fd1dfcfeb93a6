"""Times the engine's attention for the cost model: prefill, decodes, and prefixes read once for all who share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from blendserve_core.engine.cpu.attention import PagedAttention
from blendserve_core.engine.cpu.native.kernels import NativeKernels
from blendserve_core.engine.load import PAGE_SIZE, make_attention
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.perf.cascade import CascadeCosts, Saving
from blendserve_core.perf.cost import causal_pairs
from blendserve_core.perf.cpu_timings import Point
from blendserve_core.schedule.step import Capacity, StepPlan

BEYOND_CACHE_BYTES = 96 * 2**20
NUM_PROMPT_TOKENS = 512
NUM_DECODES = 16
CONTEXTS = (256, 1024)
# Rows and tokens of a shared prefix: many rows and a long one, a short one, and few rows. Rows that read the same pages one
# after the other find them in the cache, so what a pass costs shows with a prefix that is larger than a core's own.
SHARING = ((64, 4096), (64, 512), (2, 512))
FREE_CASCADE = CascadeCosts(0, 0)

Timer = Callable[[Callable[[], object]], float]
"""Seconds that one call of a function takes."""


def time_attention(
    config: ModelConfig, kernels: NativeKernels | None, dtype: torch.dtype, seconds_of: Timer
) -> tuple[Point, tuple[Point, Point]]:
    """Prefill of one prompt by its operations, and decodes over short and long contexts by the bytes they read, per layer."""
    token_bytes = 2 * config.kv_size * dtype.itemsize
    config = replace(config, num_layers=layers_beyond_cache(config, NUM_DECODES * CONTEXTS[0] * token_bytes))
    num_pages = NUM_DECODES * _num_pages(CONTEXTS[-1] + 1)
    attention = make_attention(kernels, config, Capacity(num_pages, PAGE_SIZE, 1, 1, 1), dtype)
    _fill_pages(attention, config, num_pages, dtype)
    layer_s = partial(_layer_s, config, dtype, seconds_of, attention)
    prefill_flops = 4 * config.query_size * float(causal_pairs(NUM_PROMPT_TOKENS))
    prefill = prefill_flops, layer_s(plain_step(1, NUM_PROMPT_TOKENS))
    short, long = (
        (float(NUM_DECODES * (context + 1) * token_bytes), layer_s(plain_step(NUM_DECODES, 1, context))) for context in CONTEXTS
    )
    return prefill, (short, long)


def plain_step(num_sequences: int, num_new: int, context: int = 0, num_copies: int = 0) -> StepPlan:
    """A step of like sequences, each with pages of its own; page 0 is first copied to ``num_copies`` others."""
    pages_each, total = _num_pages(context + num_new), context + num_new
    none = np.empty(0, np.int64)
    return StepPlan(
        seq_ids=np.arange(num_sequences),
        token_indptr=np.arange(num_sequences + 1, dtype=np.int32) * num_new,
        token_ids=np.zeros(num_sequences * num_new, np.int32),
        context_lens=np.full(num_sequences, context, np.int32),
        page_indptr=np.arange(num_sequences + 1, dtype=np.int32) * pages_each,
        page_indices=np.arange(num_sequences * pages_each, dtype=np.int32),
        last_page_lens=np.full(num_sequences, total - (pages_each - 1) * PAGE_SIZE, np.int32),
        is_sampled=np.ones(num_sequences, bool),
        num_outputs=np.full(num_sequences, int(num_new == 1), np.int32),
        prefix_nodes=np.full(num_sequences, -1, np.int32),
        prefix_lens=np.zeros(num_sequences, np.int32),
        finished_seq_ids=none,
        copy_src_pages=np.zeros(num_copies, np.int32),
        copy_dst_pages=np.arange(1, num_copies + 1, dtype=np.int32),
        copy_lens=np.full(num_copies, PAGE_SIZE, np.int32),
    )


def time_cascade(
    config: ModelConfig, kernels: NativeKernels, dtype: torch.dtype, seconds_of: Timer
) -> tuple[Saving, Saving, Saving]:
    """Seconds by which a layer is faster where a prefix is read once, for the cases of ``SHARING``."""
    token_bytes = 2 * config.kv_size * dtype.itemsize
    config = replace(config, num_layers=layers_beyond_cache(config, SHARING[0][1] * token_bytes))
    num_pages = max(rows + _num_pages(num_shared) for rows, num_shared in SHARING)
    capacity = Capacity(num_pages, PAGE_SIZE, 1, 1, 1)
    alone, together = (make_attention(kernels, config, capacity, dtype, costs) for costs in (None, FREE_CASCADE))
    for attention in (alone, together):
        _fill_pages(attention, config, num_pages, dtype)
    layer_s = partial(_layer_s, config, dtype, seconds_of)
    first, second, third = (
        (rows, num_shared, layer_s(alone, step) - layer_s(together, step))
        for rows, num_shared in SHARING
        for step in [sharing_step(rows, num_shared)]
    )
    return first, second, third


def sharing_step(num_rows: int, num_shared: int) -> StepPlan:
    """A step of decodes behind one prefix, whole pages long; each has one more page of its own."""
    prefix_pages, own_pages = num_shared // PAGE_SIZE, np.arange(num_rows, dtype=np.int32)[:, None]
    tables = np.hstack([np.tile(np.arange(prefix_pages, dtype=np.int32), (num_rows, 1)), prefix_pages + own_pages])
    return replace(
        plain_step(num_rows, 1, num_shared),
        page_indices=tables.ravel().astype(np.int32),
        prefix_nodes=np.zeros(num_rows, np.int32),
        prefix_lens=np.full(num_rows, num_shared, np.int32),
    )


def _fill_pages(attention: PagedAttention, config: ModelConfig, num_pages: int, dtype: torch.dtype) -> None:
    """Write every page: memory that nobody wrote is one page of zeros, which never leaves the cache."""
    first_page = plain_step(1, PAGE_SIZE)
    attention.begin_step(first_page)
    _attend_all(attention, config, first_page, dtype)()
    attention.begin_step(plain_step(1, PAGE_SIZE, num_copies=num_pages - 1))


def _layer_s(config: ModelConfig, dtype: torch.dtype, seconds_of: Timer, attention: PagedAttention, step: StepPlan) -> float:
    """Seconds of one layer's attention in a step, from a pass through all."""
    attention.begin_step(step)
    return seconds_of(_attend_all(attention, config, step, dtype)) / config.num_layers


def _attend_all(attention: PagedAttention, config: ModelConfig, step: StepPlan, dtype: torch.dtype) -> Callable[[], None]:
    """Attention of every layer in turn, of a step that has begun."""
    qkv = torch.randn(step.num_tokens, config.num_heads + 2 * config.num_kv_heads, config.head_dim, dtype=dtype)

    def run() -> None:
        for layer in range(config.num_layers):
            attention.attend(layer, qkv)

    return run


def layers_beyond_cache(config: ModelConfig, layer_bytes: int) -> int:
    """Layers whose data a pass finds outside the cache; a model that is smaller as a whole stays in it when it serves, too."""
    return min(config.num_layers, -(-BEYOND_CACHE_BYTES // layer_bytes))


def _num_pages(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_SIZE)
