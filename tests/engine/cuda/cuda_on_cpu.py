"""The CUDA engine on the CPU: the stand-in for FlashInfer, lanes of this thread, graphs that call again what they captured."""

from __future__ import annotations

from pathlib import Path

import torch
from flashinfer_stand_in import stand_in_kernels

from blendserve_core.engine.cuda.attention import AttentionSetting
from blendserve_core.engine.cuda.executor import CudaExecutor
from blendserve_core.engine.cuda.graphs import BUCKET_ROWS, Capture
from blendserve_core.engine.cuda.kv_pool import DeviceKVPool
from blendserve_core.engine.cuda.lanes import HostLanes, Lanes
from blendserve_core.engine.cuda.ops import FlashInferOps
from blendserve_core.engine.cuda.sampling import CudaSampler, DeviceSampler
from blendserve_core.engine.cuda.step_runner import Overlap, StepRunner
from blendserve_core.engine.cuda.workspaces import Workspaces, graph_workspace_bytes
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.parallel.group import Group, OneRank
from blendserve_core.engine.parallel.weights import load_part
from blendserve_core.engine.sampler import Sampler
from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import h200
from blendserve_core.perf.model_spec import ModelSpec
from blendserve_core.perf.overlap import OverlapRates
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Capacity

CPU = torch.device("cpu")


def attention_setting(
    config: ModelConfig,
    num_pages: int,
    page_size: int,
    kv_dtype: torch.dtype = torch.float32,
    dtype: torch.dtype = torch.float32,
) -> AttentionSetting:
    pool = DeviceKVPool(config, num_pages, page_size, kv_dtype)
    return AttentionSetting.make(stand_in_kernels(), config, pool, small_workspaces(config), dtype, CPU)


def small_workspaces(config: ModelConfig) -> Workspaces:
    """Large enough for captures of a bucket of rows; the rest the stand-in does not use."""
    sizes = 16, graph_workspace_bytes(config, 2 * BUCKET_ROWS)
    return Workspaces(*(torch.empty(num_bytes, dtype=torch.uint8) for num_bytes in sizes))


def call_again(start):
    start()
    return start


def cuda_executor(
    folder: Path,
    requests: RequestTable,
    capacity: Capacity,
    lanes: Lanes | None = None,
    capture: Capture | None = None,
    group: Group | None = None,
    min_tokens_saved: int = 0,
    kv_dtype: torch.dtype = torch.float32,
) -> CudaExecutor:
    """Steps are cut in two wherever ``lanes`` for that are given."""
    group = group or OneRank()
    model = load_part(folder, FlashInferOps(stand_in_kernels()), torch.float32, group)
    setting = attention_setting(model.config, capacity.num_pages, capacity.page_size, kv_dtype)
    cost = CostModel(ModelSpec.from_config(folder), h200())
    overlap = Overlap(HostLanes(), {} if lanes is None else {40: lanes}, OverlapRates())
    runner = StepRunner(model, setting, capacity, cost, overlap, capture, min_tokens_saved)
    sampler = CudaSampler(Sampler(requests, None), DeviceSampler(stand_in_kernels()), requests)
    return CudaExecutor(model, runner, sampler, capacity)
