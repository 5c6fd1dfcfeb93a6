"""Measures, in about three seconds, how fast this machine runs the engine's operators, for the cost model.

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

import psutil
import torch

from blendserve_core.engine.cpu.attention_times import Timer, layers_beyond_cache, time_attention, time_cascade
from blendserve_core.engine.cpu.native.choice import choose_kernels
from blendserve_core.engine.cpu.native.kernels import NativeKernels
from blendserve_core.engine.cpu.native.ops import NativeOps
from blendserve_core.engine.cpu.ops import PackedOps
from blendserve_core.engine.load import TORCH_DTYPES
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.llama import Decoder, DecoderLayer
from blendserve_core.engine.model.ops import Linear, TorchOps
from blendserve_core.perf.cpu_timings import CpuTimings
from blendserve_core.perf.measured import measurement_path, read_spread, write_measurement
from blendserve_core.perf.model_spec import ModelSpec
from schemas.parameters import DtypeName, EngineOptions

logger = logging.getLogger(__name__)

MAX_WIDTH, MAX_INTERMEDIATE = 2048, 6144
ROWS = (1, 16, 256)
MIN_REPEATS, MIN_SECONDS, MAX_REPEATS = 3, 0.15, 15
# On a quiet machine medians are within a few percent of the fastest repeat.
MAX_SPREAD = 0.25


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
    num_layers = layers_beyond_cache(config, layer_parameters * dtype.itemsize)
    decoder = random_decoder(replace(config, num_layers=num_layers), ops, dtype)
    one, few, many = ((rows, seconds_of(_pass_over(decoder, rows))) for rows in ROWS)
    prefill, decode = time_attention(config, kernels, dtype, seconds_of)
    return CpuTimings(
        num_parameters=num_layers * layer_parameters,
        weight_bytes=num_layers * layer_parameters * dtype.itemsize,
        layers=(one, few, many),
        prefill=prefill,
        decode=decode,
        cascade=None if kernels is None else time_cascade(config, kernels, dtype, seconds_of),
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


def _pass_over(decoder: Decoder, num_rows: int) -> Callable[[], torch.Tensor]:
    """All layers over some rows, with attention's result given."""
    token_ids = torch.zeros(num_rows, dtype=torch.int32)
    attended = torch.randn(num_rows, decoder.config.query_size, dtype=decoder.embeddings.dtype)
    return lambda: decoder.forward(token_ids, lambda _layer, _qkv: attended)
