"""Builds the CPU executor for a model folder, sized for this machine and for the requests it will serve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import torch

from blendserve_core.engine.cpu.attention import PagedAttention, TorchAttention
from blendserve_core.engine.cpu.executor import CpuExecutor
from blendserve_core.engine.cpu.invariant import InvariantOps
from blendserve_core.engine.cpu.native.attention import NativeAttention
from blendserve_core.engine.cpu.native.choice import choose_kernels
from blendserve_core.engine.cpu.native.kernels import NativeKernels
from blendserve_core.engine.cpu.native.ops import NativeOps
from blendserve_core.engine.cpu.ops import PackedOps
from blendserve_core.engine.grammars import load_grammars
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.ops import TorchOps
from blendserve_core.engine.model.weights import load_decoder
from blendserve_core.engine.traced import TracedAttention, TracedOps
from blendserve_core.perf.cascade import CascadeCosts
from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.measured import measured_cascade, measured_cpu
from blendserve_core.perf.model_spec import ModelSpec
from blendserve_core.perf.step_budget import StepBudget, step_budget
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Capacity
from blendserve_core.trace import Tracer
from schemas.parameters import DtypeName, EngineOptions

PAGE_SIZE = 16
TORCH_DTYPES: dict[DtypeName, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}
# The KV pool takes at most this share of the memory left beside the model, and this much.
MEMORY_SHARE = 0.5
MAX_KV_BYTES = 4 * 2**30


def load_cpu_executor(
    model_folder: Path,
    requests: RequestTable,
    dtype: DtypeName,
    options: EngineOptions,
    num_engines: int = 1,
    tracer: Tracer | None = None,
) -> CpuExecutor:
    """Load the model and allocate its KV pool, on an equal part of a machine that ``num_engines`` share.

    With a ``tracer`` every call of an operator is a span. Raises ValueError for a model or a machine that cannot serve.
    """
    torch.set_num_threads(options.threads or max(1, torch.get_num_threads() // num_engines))
    number_format = TORCH_DTYPES[dtype]
    config = ModelConfig.from_folder(model_folder)
    kernels = choose_kernels(options.kernels, config, torch.get_num_threads())
    ops = make_ops(kernels, batch_invariant=options.batch_invariant)
    model = load_decoder(model_folder, ops if tracer is None else TracedOps(ops, tracer), number_format)
    spec, available_bytes = ModelSpec.from_config(model_folder, dtype=dtype), free_memory_bytes() // num_engines
    budget = measured_budget(spec, dtype, options, available_bytes, num_engines)
    capacity = plan_capacity(config, requests, number_format, options, available_bytes, budget)
    cascade = None if options.batch_invariant else measured_cascade(spec, dtype, options)
    attention = make_attention(kernels, config, capacity, number_format, cascade)
    if tracer is not None:
        attention = TracedAttention(attention, tracer)
    grammars = load_grammars(model_folder, requests, torch.get_num_threads())
    return CpuExecutor(model, attention, requests, capacity, grammars, tracer)


def free_memory_bytes(cgroup_limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Memory that can still be had: the machine's, or less where a container is limited (cgroup v2)."""
    available = psutil.virtual_memory().available
    limit = cgroup_limit.read_text(encoding="utf-8").strip() if cgroup_limit.is_file() else "max"
    return available if limit == "max" else min(available, int(limit) - psutil.Process().memory_info().rss)


def make_ops(kernels: NativeKernels | None, *, batch_invariant: bool = False) -> TorchOps:
    if not batch_invariant:
        return PackedOps() if kernels is None else NativeOps(kernels)
    if kernels is None:
        raise ValueError("batch_invariant needs the native kernels, and they are switched off or cannot be built here")
    return InvariantOps(kernels)


def make_attention(
    kernels: NativeKernels | None,
    config: ModelConfig,
    capacity: Capacity,
    dtype: torch.dtype,
    cascade: CascadeCosts | None = None,
) -> PagedAttention:
    """Without ``cascade`` every row reads its own context, shared or not."""
    if kernels is None:
        return TorchAttention(config, capacity.num_pages, capacity.page_size, dtype)
    return NativeAttention(config, kernels, capacity.num_pages, dtype, cascade)


def measured_budget(
    model: ModelSpec, dtype: DtypeName, options: EngineOptions, available_bytes: int, num_engines: int = 1
) -> StepBudget:
    """How wide steps should be on this machine; usual ones where it was not measured yet."""
    hardware = measured_cpu(model, dtype, options)
    if hardware is None:
        return StepBudget()
    if options.threads is None:
        hardware = hardware.shared_by(num_engines)
    return step_budget(CostModel(model, hardware, engine="sequential"), available_bytes)


def plan_capacity(
    config: ModelConfig,
    requests: RequestTable,
    dtype: torch.dtype,
    options: EngineOptions,
    available_bytes: int,
    budget: StepBudget,
) -> Capacity:
    """Size the engine from the options, else from the budget, what the requests can use at most, and the memory there is."""
    max_sequences = options.max_sequences or budget.max_sequences
    page_bytes = 2 * config.num_layers * config.kv_size * dtype.itemsize * PAGE_SIZE
    if options.kv_cache_tokens is not None:
        num_pages = options.kv_cache_tokens // PAGE_SIZE
    else:
        affordable = int(min(MAX_KV_BYTES, available_bytes * MEMORY_SHARE)) // page_bytes
        num_pages = min(affordable, most_usable_pages(requests, max_sequences, config.max_context_tokens))
    if num_pages < 1:
        raise ValueError(f"{available_bytes / 2**20:.0f} MiB of free memory are too little for one page of KV cache")
    return Capacity(
        num_pages=num_pages,
        page_size=PAGE_SIZE,
        max_step_tokens=options.max_step_tokens or max(budget.max_step_tokens, max_sequences),
        max_sequences=max_sequences,
        max_sequence_tokens=config.max_context_tokens,
    )


def most_usable_pages(requests: RequestTable, max_sequences: int, max_context_tokens: int) -> int:
    """Pages that the largest requests would fill if they ran together, plus the cache of every prompt."""
    num_prompt_tokens = requests.num_prompt_tokens.astype(np.int64)
    most_tokens = np.minimum(num_prompt_tokens + requests.sampling.max_tokens, max_context_tokens)
    running_tokens = np.sort(most_tokens)[-max_sequences:]
    cached_tokens = int(np.minimum(num_prompt_tokens, max_context_tokens).sum())
    return int((running_tokens // PAGE_SIZE + 1).sum()) + cached_tokens // PAGE_SIZE + 1
