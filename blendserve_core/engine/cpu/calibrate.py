"""Measures, in about two seconds, how fast this machine runs the engine's operators, for the cost model.

It times the linear maps and the attention that the engine serves with, on random layers of the model's shapes: as many as lie
beyond the cache, and no wider than rates depend on. Once per machine, model shapes and options; planners read it from a file.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import torch

from blendserve_core.engine.cpu.attention import PagedAttention
from blendserve_core.engine.cpu.native.choice import choose_kernels
from blendserve_core.engine.cpu.native.kernels import NativeKernels
from blendserve_core.engine.cpu.native.ops import NativeOps
from blendserve_core.engine.cpu.ops import PackedOps
from blendserve_core.engine.load import PAGE_SIZE, TORCH_DTYPES, make_attention
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.llama import Decoder, DecoderLayer
from blendserve_core.engine.model.ops import Linear, TorchOps
from blendserve_core.perf.cost import causal_pairs
from blendserve_core.perf.cpu_timings import CpuTimings, Point
from blendserve_core.perf.measured import measurement_path, read_spread, write_measurement
from blendserve_core.perf.model_spec import ModelSpec
from blendserve_core.schedule.step import Capacity, StepPlan
from schemas.parameters import DtypeName, EngineOptions

logger = logging.getLogger(__name__)

BEYOND_CACHE_BYTES = 96 * 2**20
MAX_WIDTH, MAX_INTERMEDIATE = 2048, 6144
ROWS = (1, 16, 256)
NUM_PROMPT_TOKENS = 512
NUM_DECODES = 16
CONTEXTS = (256, 1024)
MIN_REPEATS, MIN_SECONDS, MAX_REPEATS = 3, 0.15, 15
# On a quiet machine medians are within a few percent of the fastest repeat.
MAX_SPREAD = 0.25

Timer = Callable[[Callable[[], object]], float]
"""Seconds that one call of a function takes."""


def measure_cpu_once(model_folder: Path, dtype: DtypeName, options: EngineOptions) -> None:
    """Measure this machine for such an engine, unless one did before; what was found goes to the cache and the log.

    A measurement taken while others kept the machine busy serves until the next engine measures anew.
    """
    path = measurement_path(ModelSpec.from_config(model_folder, dtype=dtype), dtype, options)
    spread_before = read_spread(path)
    if spread_before <= MAX_SPREAD:
        return
    started = time.perf_counter()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    config = ModelConfig.from_folder(model_folder)
    kernels = choose_kernels(options.kernels, config, torch.get_num_threads())
    seconds_of = MedianTimer()
    timings = time_operators(config, kernels, TORCH_DTYPES[dtype], seconds_of)
    spec = timings.hardware(os.cpu_count() or 1, float(psutil.virtual_memory().total))
    logger.info("measured this CPU in %.1f s: %s", time.perf_counter() - started, spec)
    if seconds_of.spread > MAX_SPREAD:
        logger.info("others kept this CPU busy (repeats %.0f %% apart): the next engine measures anew", 100 * seconds_of.spread)
    if seconds_of.spread > spread_before:
        return
    try:
        write_measurement(path, spec, timings, seconds_of.spread)
    except OSError as error:
        logger.warning("the cost model goes on with assumed rates: the measured ones cannot be kept in %s: %s", path, error)


@torch.inference_mode()
def time_operators(
    config: ModelConfig, kernels: NativeKernels | None, dtype: torch.dtype, seconds_of: Timer | None = None
) -> CpuTimings:
    """Time layers of the config's shapes without attention, and attention alone."""
    config, seconds_of = narrowed(config), seconds_of or MedianTimer()
    ops = PackedOps() if kernels is None else NativeOps(kernels)
    layer_parameters = num_matrix_parameters(config)
    num_layers = _layers_beyond_cache(config, layer_parameters * dtype.itemsize)
    decoder = random_decoder(replace(config, num_layers=num_layers), ops, dtype)
    one, few, many = ((rows, seconds_of(_pass_over(decoder, rows))) for rows in ROWS)
    prefill, decode = time_attention(config, kernels, dtype, seconds_of)
    return CpuTimings(
        num_parameters=num_layers * layer_parameters,
        weight_bytes=num_layers * layer_parameters * dtype.itemsize,
        layers=(one, few, many),
        prefill=prefill,
        decode=decode,
    )


class MedianTimer:
    """Median of repeated calls, after a first one that may still prepare something.

    ``spread`` is the most by which a median was above its fastest repeat so far, as a share of that.
    """

    def __init__(self) -> None:
        self.spread = 0.0

    def __call__(self, call: Callable[[], object]) -> float:
        call()
        seconds: list[float] = []
        while len(seconds) < MIN_REPEATS or (sum(seconds) < MIN_SECONDS and len(seconds) < MAX_REPEATS):
            started = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - started)
        self.spread = max(self.spread, median(seconds) / min(seconds) - 1)
        return median(seconds)


def narrowed(config: ModelConfig) -> ModelConfig:
    """The same model, no wider than fits a short measurement; head size and heads per KV head stay."""
    group = config.num_heads // config.num_kv_heads
    num_kv_heads = max(1, min(config.num_kv_heads, MAX_WIDTH // (config.head_dim * group)))
    return replace(
        config,
        hidden_size=min(config.hidden_size, MAX_WIDTH),
        intermediate_size=min(config.intermediate_size, MAX_INTERMEDIATE),
        num_heads=num_kv_heads * group,
        num_kv_heads=num_kv_heads,
    )


def num_matrix_parameters(config: ModelConfig) -> int:
    """Parameters of one layer's matrices."""
    attention = 2 * config.hidden_size * (config.query_size + config.kv_size)
    return attention + 3 * config.hidden_size * config.intermediate_size


def random_decoder(config: ModelConfig, ops: TorchOps, dtype: torch.dtype) -> Decoder:
    """A model with a vocabulary of one token."""

    def linear(num_outputs: int, num_inputs: int) -> Linear:
        return ops.linear(torch.randn(num_outputs, num_inputs, dtype=dtype) / math.sqrt(num_inputs), None)

    def layer() -> DecoderLayer:
        return DecoderLayer(
            input_norm=norm,
            qkv=linear(config.query_size + 2 * config.kv_size, config.hidden_size),
            q_norm=None,
            k_norm=None,
            output=linear(config.hidden_size, config.query_size),
            mlp_norm=norm,
            gate_up=linear(2 * config.intermediate_size, config.hidden_size),
            down=linear(config.hidden_size, config.intermediate_size),
        )

    norm, embeddings = torch.ones(config.hidden_size, dtype=dtype), torch.randn(1, config.hidden_size, dtype=dtype)
    layers = tuple(layer() for _ in range(config.num_layers))
    return Decoder(config, ops, embeddings, layers, norm, linear(1, config.hidden_size))


def time_attention(
    config: ModelConfig, kernels: NativeKernels | None, dtype: torch.dtype, seconds_of: Timer
) -> tuple[Point, tuple[Point, Point]]:
    """Prefill of one prompt by its operations, and decodes over short and long contexts by the bytes they read, per layer."""
    token_bytes = 2 * config.kv_size * dtype.itemsize
    num_layers = _layers_beyond_cache(config, NUM_DECODES * CONTEXTS[0] * token_bytes)
    config = replace(config, num_layers=num_layers)
    num_pages = NUM_DECODES * _num_pages(CONTEXTS[-1] + 1)
    attention = make_attention(kernels, config, Capacity(num_pages, PAGE_SIZE, 1, 1, 1), dtype)
    _fill_pages(attention, config, num_pages, dtype)

    def layer_s(step: StepPlan) -> float:
        attention.begin_step(step)
        return seconds_of(_attend_all(attention, config, step, dtype)) / num_layers

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


def _fill_pages(attention: PagedAttention, config: ModelConfig, num_pages: int, dtype: torch.dtype) -> None:
    """Write every page: memory that nobody wrote is one page of zeros, which never leaves the cache."""
    first_page = plain_step(1, PAGE_SIZE)
    attention.begin_step(first_page)
    _attend_all(attention, config, first_page, dtype)()
    attention.begin_step(plain_step(1, PAGE_SIZE, num_copies=num_pages - 1))


def _attend_all(attention: PagedAttention, config: ModelConfig, step: StepPlan, dtype: torch.dtype) -> Callable[[], None]:
    """Attention of every layer in turn, of a step that has begun."""
    qkv = torch.randn(step.num_tokens, config.num_heads + 2 * config.num_kv_heads, config.head_dim, dtype=dtype)

    def run() -> None:
        for layer in range(config.num_layers):
            attention.attend(layer, qkv)

    return run


def _pass_over(decoder: Decoder, num_rows: int) -> Callable[[], torch.Tensor]:
    """All layers over some rows, with attention's result given."""
    token_ids = torch.zeros(num_rows, dtype=torch.int32)
    attended = torch.randn(num_rows, decoder.config.query_size, dtype=decoder.embeddings.dtype)
    return lambda: decoder.forward(token_ids, lambda _layer, _qkv: attended)


def _layers_beyond_cache(config: ModelConfig, layer_bytes: int) -> int:
    """Layers whose data a pass finds outside the cache; a model that is smaller as a whole stays in it when it serves, too."""
    return min(config.num_layers, -(-BEYOND_CACHE_BYTES // layer_bytes))


def _num_pages(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_SIZE)
