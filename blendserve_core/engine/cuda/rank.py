"""Builds one rank of the CUDA engine: its part of the model, its KV pool, and what runs its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from blendserve_core.engine.cuda.attention import AttentionSetting
from blendserve_core.engine.cuda.graphs import BUCKET_ROWS, GRAPH_BYTES, MAX_GRAPHS, Capture, cuda_capture
from blendserve_core.engine.cuda.kernels import Kernels
from blendserve_core.engine.cuda.kv_pool import FP8, DeviceKVPool
from blendserve_core.engine.cuda.lanes import HostLanes
from blendserve_core.engine.cuda.memory import check_model_fits, kv_pages, page_bytes
from blendserve_core.engine.cuda.ops import FlashInferOps
from blendserve_core.engine.cuda.sampling import DeviceSampler, sampled_before
from blendserve_core.engine.cuda.split_sms import green_streams, one_stream, plain_streams
from blendserve_core.engine.cuda.step_runner import Overlap, StepRunner
from blendserve_core.engine.cuda.workspaces import Workspaces, graph_workspace_bytes
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.llama import Decoder
from blendserve_core.engine.parallel.group import Group, OneRank, ProcessGroup
from blendserve_core.engine.parallel.weights import load_part
from blendserve_core.engine.sampling import RowParameters
from blendserve_core.perf.engine_cost import cuda_cost, overlap_rates
from blendserve_core.perf.overlap import OverlapRates
from blendserve_core.schedule.step import Capacity, StepPlan
from schemas.parameters import DtypeName, EngineOptions

PAGE_SIZE = 16
MAX_STEP_TOKENS = 2048
MAX_SEQUENCES = 1024
# Divisions of an H100's or H200's 132 multiprocessors, in the steps of 8 that the driver makes.
SM_CHOICES = (24, 40, 56)
JOIN_S = 600.0


@dataclass(frozen=True, slots=True)
class RankSpec:
    """What every rank of a group is told, on its way to another process too.

    ``most_usable_pages`` is all that the requests can use. Without ``is_on_gpu`` the ranks run on the CPU and meet over gloo.
    """

    model_folder: Path
    dtype: DtypeName
    options: EngineOptions
    most_usable_pages: int
    rendezvous: Path
    kernels: Callable[[], Kernels]
    is_on_gpu: bool = True
    first_device: int = 0

    def device(self, rank: int) -> torch.device:
        return torch.device("cuda", self.first_device + rank) if self.is_on_gpu else torch.device("cpu")

    @property
    def group_name(self) -> str:
        """Groups of one job have the devices in turn."""
        size = self.options.tensor_parallel
        return f"tensor-parallel group {self.first_device // size}, of {size} ranks,"


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank, ready for steps. ``capacity`` is that of the rank that can hold least."""

    model: Decoder
    runner: StepRunner
    capacity: Capacity
    group: Group


def join_group(spec: RankSpec, rank: int) -> Group:
    """Wait for the other ranks, if there are any."""
    size = spec.options.tensor_parallel
    if size == 1:
        return OneRank()
    backend = "nccl" if spec.is_on_gpu else "gloo"
    return ProcessGroup(backend, spec.rendezvous, rank, size, spec.device(rank), JOIN_S)


def build_rank(spec: RankSpec, rank: int) -> Rank:
    """Load this rank's part and allocate its KV pool. Raises ValueError where the model does not fit."""
    device, dtype, options = spec.device(rank), getattr(torch, spec.dtype), spec.options
    if spec.is_on_gpu:
        torch.cuda.set_device(device)
        check_model_fits(ModelConfig.from_folder(spec.model_folder), dtype, options.tensor_parallel, free_bytes())
    group, kernels = join_group(spec, rank), spec.kernels()
    model = load_part(spec.model_folder, FlashInferOps(kernels), dtype, group, str(device))
    builder = _Builder(spec, model, kernels, device, dtype)
    num_pages = group.minimum(builder.num_pages())
    capacity = builder.capacity(num_pages)
    runner = builder.runner(capacity, builder.overlap(), cuda_capture() if spec.is_on_gpu else None)
    return Rank(model, runner, capacity, group)


def follow(spec: RankSpec, rank: int, steps: Iterator[StepPlan]) -> None:
    """The life of a rank other than the first: run every step's layers and its part of the lm_head."""
    part = build_rank(spec, rank)
    sampled = None
    with torch.inference_mode():
        for step in steps:
            hidden, _ = part.runner.run(step, sampled_before(step, sampled, part.group))
            sampled = hidden.new_empty(len(hidden), dtype=torch.int32)
            if len(hidden):
                part.model.logits(hidden)
    part.group.leave()


@dataclass(frozen=True, slots=True)
class _Builder:
    """Step runners of one model, over KV pools of any size."""

    spec: RankSpec
    model: Decoder
    kernels: Kernels
    device: torch.device
    dtype: torch.dtype

    @property
    def kv_dtype(self) -> torch.dtype:
        return FP8 if self.spec.options.kv_dtype == "fp8" else self.dtype

    def capacity(self, num_pages: int) -> Capacity:
        options = self.spec.options
        max_sequences = options.max_sequences or MAX_SEQUENCES
        max_step_tokens = options.max_step_tokens or max(MAX_STEP_TOKENS, max_sequences)
        return Capacity(num_pages, PAGE_SIZE, max_step_tokens, max_sequences, self.model.config.max_context_tokens)

    def runner(self, capacity: Capacity, overlap: Overlap, capture: Capture | None) -> StepRunner:
        pool = DeviceKVPool(self.model.config, capacity.num_pages, PAGE_SIZE, self.kv_dtype, self.device)
        graph_bytes = graph_workspace_bytes(self.model.config, capacity.max_sequences + BUCKET_ROWS)
        workspaces = Workspaces.allocate(self.device, graph_bytes)
        setting = AttentionSetting.make(self.kernels, self.model.config, pool, workspaces, self.dtype, self.device)
        cost = cuda_cost(self.spec.model_folder, self.spec.dtype, self.spec.options)
        return StepRunner(self.model, setting, capacity, cost, overlap, capture)

    def num_pages(self) -> int:
        """As asked for, else what fits beside the workspace of the largest step, which is run once to see what it takes."""
        if self.spec.options.kv_cache_tokens is not None:
            return self.spec.options.kv_cache_tokens // PAGE_SIZE
        capacity = self.capacity(0)
        pages_of_step = -(-capacity.max_step_tokens // PAGE_SIZE)
        workspace_bytes = self._measured_bytes(self.capacity(pages_of_step)) + MAX_GRAPHS * GRAPH_BYTES
        torch.cuda.empty_cache()
        bytes_per_page = page_bytes(self.model.config, self.kv_dtype, PAGE_SIZE)
        return kv_pages(free_bytes(), workspace_bytes, bytes_per_page, self.spec.most_usable_pages)

    @torch.inference_mode()
    def _measured_bytes(self, capacity: Capacity) -> int:
        """Device memory beside the weights that a full step takes, sampling included, less its small pool of KV."""
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        runner = self.runner(capacity, Overlap(one_stream(self.device), {}, OverlapRates()), None)
        hidden, _ = runner.run(one_long_prompt(capacity))
        logits = self.model.logits(hidden.expand(capacity.max_sequences, -1)).float()
        DeviceSampler(self.kernels).sample(logits, costly_parameters(len(logits)))
        torch.cuda.synchronize()
        pool_bytes = (capacity.num_pages + 1) * page_bytes(self.model.config, self.kv_dtype, PAGE_SIZE)
        return torch.cuda.max_memory_allocated() - before - pool_bytes

    def overlap(self) -> Overlap:
        """Lanes as the options choose them. Splits of the multiprocessors last as long as the process, so make them once."""
        rates = overlap_rates(self.spec.model_folder, self.spec.dtype, self.spec.options)
        if not self.spec.is_on_gpu:
            return Overlap(HostLanes(), {} if self.spec.options.overlap == "none" else {40: HostLanes()}, rates)
        if self.spec.options.overlap == "none":
            return Overlap(one_stream(self.device), {}, rates)
        if self.spec.options.overlap == "streams":
            return Overlap(one_stream(self.device), {0: plain_streams(self.device)}, rates)
        return Overlap(one_stream(self.device), {num: green_streams(self.device, num) for num in SM_CHOICES}, rates)


def free_bytes() -> int:
    return torch.cuda.mem_get_info()[0]


def costly_parameters(num: int) -> RowParameters:
    """Rows that are drawn, with every kind of truncation."""
    return RowParameters(
        temperature=np.ones(num, dtype=np.float32),
        top_k=np.full(num, 20, dtype=np.int64),
        top_p=np.full(num, 0.9, dtype=np.float32),
        min_p=np.full(num, 0.01, dtype=np.float32),
        uniform=np.full(num, 0.5),
    )


def one_long_prompt(capacity: Capacity) -> StepPlan:
    """A step as large as may be: prompts of up to the longest context, with pages of their own."""
    lens = np.full(-(-capacity.max_step_tokens // capacity.max_sequence_tokens), capacity.max_sequence_tokens, dtype=np.int32)
    lens[-1] = capacity.max_step_tokens - lens[:-1].sum()
    num_pages = -(-lens // capacity.page_size)
    none, num = np.empty(0, dtype=np.int32), len(lens)
    return StepPlan(
        seq_ids=np.arange(num),
        token_indptr=np.concatenate([[0], np.cumsum(lens)]).astype(np.int32),
        token_ids=np.zeros(lens.sum(), dtype=np.int32),
        context_lens=np.zeros(num, dtype=np.int32),
        page_indptr=np.concatenate([[0], np.cumsum(num_pages)]).astype(np.int32),
        page_indices=np.arange(num_pages.sum(), dtype=np.int32) % capacity.num_pages,
        last_page_lens=(lens - 1) % capacity.page_size + 1,
        is_sampled=np.arange(num) == 0,
        num_outputs=np.zeros(num, dtype=np.int32),
        prefix_nodes=np.full(num, -1, dtype=np.int32),
        prefix_lens=np.zeros(num, dtype=np.int32),
        finished_seq_ids=np.empty(0, dtype=np.int64),
        copy_src_pages=none,
        copy_dst_pages=none,
        copy_lens=none,
    )
