"""Measures this GPU, in well under a minute, with the engine's own operators on random layers of a model's shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from blendserve_core.engine.cpu.attention_times import plain_step
from blendserve_core.engine.cpu.calibrate import num_matrix_parameters, random_decoder
from blendserve_core.engine.cuda.attention import AttentionSetting, NanoBatchAttention
from blendserve_core.engine.cuda.batch import batch_arrays
from blendserve_core.engine.cuda.kernels import Kernels, flashinfer_kernels
from blendserve_core.engine.cuda.kv_pool import FP8, DeviceKVPool
from blendserve_core.engine.cuda.lanes import Lanes
from blendserve_core.engine.cuda.load import check_devices
from blendserve_core.engine.cuda.ops import FlashInferOps
from blendserve_core.engine.cuda.overlap import NanoBatch, overlapped_program
from blendserve_core.engine.cuda.program import Lane, Program, Recorder
from blendserve_core.engine.cuda.rank import PAGE_SIZE, SM_CHOICES
from blendserve_core.engine.cuda.split_sms import green_streams, one_stream, plain_streams
from blendserve_core.engine.cuda.workspaces import Workspaces
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.llama import Decoder
from blendserve_core.engine.parallel.weights import part_config
from blendserve_core.perf.cost import causal_pairs
from blendserve_core.perf.cpu_timings import CpuTimings
from blendserve_core.perf.cuda_measured import CudaMeasurement, cuda_measurement_path, write_cuda_measurement
from blendserve_core.perf.cuda_timings import CudaTimings
from blendserve_core.perf.engine_cost import cuda_model
from blendserve_core.schedule.step import StepPlan
from schemas.parameters import DtypeName, EngineOptions

# So many layers lie beyond the L2 cache, whatever their size.
NUM_LAYERS = 4
ROWS = (1, 256, 2048)
LM_HEAD_ROWS = 1024
NUM_PROMPT_TOKENS = 2048
NUM_DECODES = 128
CONTEXTS = (512, 2048)
OVERLAPPED_ROWS = 512
MAX_CONTEXT = 2048
NUM_REPEATS = 7
# Some milliseconds, while the host starts what is measured.
HEAD_START_CYCLES = 10_000_000

Timer = Callable[[Callable[[], object]], float]
"""Seconds that the device takes for what a function starts."""


def calibrate_cuda(model_folder: Path, dtype: DtypeName, options: EngineOptions) -> tuple[CudaMeasurement, Path]:
    """Measure the first GPU for a model's shapes, and keep the rates where planners and engines read them."""
    check_devices(1, dtype)
    device = torch.device("cuda", 0)
    bench = OperatorBench.make(model_folder, dtype, options, flashinfer_kernels(), device, device_seconds)
    splits = {num_sms: green_streams(device, num_sms) for num_sms in SM_CHOICES}
    timings = bench.timings(one_stream(device), splits, plain_streams(device))
    properties = torch.cuda.get_device_properties(device)
    measured = timings.measurement(properties.name, properties.multi_processor_count, float(properties.total_memory))
    path = cuda_measurement_path(cuda_model(model_folder, dtype, options))
    write_cuda_measurement(path, measured)
    return measured, path


def device_seconds(call: Callable[[], object]) -> float:
    """Median of repeated calls between events, after two that may still prepare something.

    The device is kept busy until all is queued, as it is by the step before in a job: not the host's launches are measured.
    """
    seconds: list[float] = []
    for repeat in range(NUM_REPEATS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(HEAD_START_CYCLES)
        start.record()
        call()
        end.record()
        end.synchronize()
        if repeat >= 2:
            seconds.append(start.elapsed_time(end) / 1e3)
    return median(seconds)


@dataclass(frozen=True, slots=True)
class OperatorBench:
    """Random layers of one rank's shapes, and a KV pool to attend over."""

    model: Decoder
    setting: AttentionSetting
    lm_head_weight: torch.Tensor
    seconds_of: Timer

    @classmethod
    def make(
        cls, model_folder: Path, dtype_name: DtypeName, options: EngineOptions, kernels: Kernels, device: torch.device,
        seconds_of: Timer,
    ) -> OperatorBench:  # fmt: skip
        dtype = getattr(torch, dtype_name)
        config = part_config(ModelConfig.from_folder(model_folder), options.tensor_parallel)
        config = replace(config, num_layers=min(NUM_LAYERS, config.num_layers), max_context_tokens=2 * MAX_CONTEXT)
        with torch.device(device):
            model = random_decoder(config, FlashInferOps(kernels), dtype)
            lm_head_weight = torch.randn(config.vocab_size, config.hidden_size, dtype=dtype) / math.sqrt(config.hidden_size)
        num_pages = OVERLAPPED_ROWS * (MAX_CONTEXT // PAGE_SIZE + 1)
        kv_dtype = FP8 if options.kv_dtype == "fp8" else dtype
        pool = DeviceKVPool(config, num_pages, PAGE_SIZE, kv_dtype, device)
        for layer in range(config.num_layers):
            # Not zeros, on which memory and arithmetic run faster than on data.
            pool.layer(layer).copy_(pool.stored(torch.randn(pool.layer(layer).shape, dtype=dtype, device=device)))
        setting = AttentionSetting.make(kernels, config, pool, Workspaces.allocate(device), dtype, device)
        return cls(model, setting, lm_head_weight, seconds_of)

    @torch.inference_mode()
    def timings(self, whole: Lanes, splits: Mapping[int, Lanes], streams: Lanes) -> CudaTimings:
        operators = self.operators()
        step = self.balanced_step(operators)
        long_decodes = plain_step(NUM_DECODES, 1, CONTEXTS[-1])
        on_sms = {num_sms: self.decode_s(long_decodes, lanes) for num_sms, lanes in splits.items()}
        compute_s = self.pass_s(step.num_tokens) * self.model.config.num_layers
        memory_s = self.decode_s(step, whole) * self.model.config.num_layers
        middle = sorted(splits)[len(splits) // 2]
        return CudaTimings(
            operators=operators,
            lm_head=(2.0 * self.lm_head_weight.numel() * LM_HEAD_ROWS, self._lm_head_s()),
            decode_on_sms=on_sms,
            decode_on_all_s=self.decode_s(long_decodes, whole),
            whole_s=(compute_s, memory_s),
            overlapped_s=self.step_s(step, splits[middle]),
            streams_s=self.step_s(step, streams),
        )

    def operators(self) -> CpuTimings:
        config, token_bytes = self.model.config, self._token_bytes
        layer_parameters = num_matrix_parameters(config)
        one, few, many = ((float(rows), self.pass_s(rows) * config.num_layers) for rows in ROWS)
        prompt = plain_step(1, NUM_PROMPT_TOKENS)
        short, long = (
            (float(NUM_DECODES * (context + 1) * token_bytes), self.decode_s(plain_step(NUM_DECODES, 1, context), None))
            for context in CONTEXTS
        )
        return CpuTimings(
            num_parameters=config.num_layers * layer_parameters,
            weight_bytes=config.num_layers * layer_parameters * self.setting.dtype.itemsize,
            layers=(one, few, many),
            prefill=(4.0 * config.query_size * float(causal_pairs(NUM_PROMPT_TOKENS)), self._prefill_s(prompt)),
            decode=(short, long),
        )

    @property
    def _token_bytes(self) -> int:
        return 2 * self.model.config.kv_size * self.setting.pool.dtype.itemsize

    def balanced_step(self, operators: CpuTimings) -> StepPlan:
        """Decodes whose attention takes about as long as their GEMMs."""
        gemm_s = self.pass_s(OVERLAPPED_ROWS)
        read_bytes, read_s = operators.decode[-1]
        context = gemm_s * read_bytes / read_s / self._token_bytes / OVERLAPPED_ROWS
        return plain_step(OVERLAPPED_ROWS, 1, int(min(max(context, PAGE_SIZE), MAX_CONTEXT - 1)))

    def pass_s(self, num_rows: int) -> float:
        """GEMMs, norms and activation of one layer."""
        config, device = self.model.config, self.setting.device
        token_ids = torch.zeros(num_rows, dtype=torch.int32, device=device)
        attended = torch.randn(num_rows, config.query_size, dtype=self.setting.dtype, device=device)
        return self.seconds_of(lambda: self.model.forward(token_ids, lambda _layer, _qkv: attended)) / config.num_layers

    def _lm_head_s(self) -> float:
        hidden = torch.randn(LM_HEAD_ROWS, self.model.config.hidden_size, dtype=self.setting.dtype, device=self.setting.device)
        return self.seconds_of(lambda: torch.nn.functional.linear(hidden, self.lm_head_weight))

    def _prefill_s(self, step: StepPlan) -> float:
        """Per layer."""
        attention, q = self._begun(step)
        return self._over_layers(lambda layer: attention.attend_chunks(layer, q))

    def decode_s(self, step: StepPlan, lanes: Lanes | None) -> float:
        """Per layer, on the lane for attention, or on the current stream."""
        attention, q = self._begun(step)
        return self._over_layers(lambda layer: attention.attend_decodes(layer, q), lanes)

    def _over_layers(self, attend: Callable[[int], None], lanes: Lanes | None = None) -> float:
        layers = range(self.model.config.num_layers)

        def run() -> None:
            if lanes is None:
                for layer in layers:
                    attend(layer)
            else:
                lanes.issue(attention_program(attend, layers), is_timed=False)

        return self.seconds_of(run) / len(layers)

    def _begun(self, step: StepPlan) -> tuple[NanoBatchAttention, torch.Tensor]:
        attention = NanoBatchAttention(self.setting, step.num_tokens, len(step.page_indices))
        attention.begin(batch_arrays(step, np.arange(step.num_sequences), PAGE_SIZE))
        shape = (step.num_tokens, self.model.config.num_heads, self.model.config.head_dim)
        return attention, torch.randn(shape, dtype=self.setting.dtype, device=self.setting.device)

    def step_s(self, step: StepPlan, lanes: Lanes) -> float:
        """All layers of a step that is cut in halves."""
        halves = np.array_split(np.arange(step.num_sequences), 2)
        nano_batches = []
        for name, places in zip("AB", halves, strict=True):
            nano = NanoBatch(name, self.model, NanoBatchAttention(self.setting, len(places), len(step.page_indices)))
            nano.attention.begin(batch_arrays(step, places, PAGE_SIZE))
            nano_batches.append(nano)
        return self.seconds_of(lambda: lanes.issue(overlapped_program(self.model, nano_batches), is_timed=False))


def attention_program(attend: Callable[[int], None], layers: Sequence[int]) -> Program:
    """Attention alone, on its lane."""
    recorder = Recorder()
    for layer in layers:
        recorder.run(Lane.ATTENTION, f"attention {layer}", partial(attend, layer), [], ["out"])
    return recorder.program
