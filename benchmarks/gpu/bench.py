"""What the sections of the GPU check share: the device, the model of Llama-3-8B's shape on it, and what they find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from correctness import Check
from idle import IdleMeter, MeteredExecutor, MeteredLanes, metered_capture
from random_model import LLAMA_3_8B, config_folder, random_model

from blendserve_core.engine.cuda.attention import AttentionSetting
from blendserve_core.engine.cuda.calibrate import OperatorBench, device_seconds
from blendserve_core.engine.cuda.executor import CudaExecutor
from blendserve_core.engine.cuda.graphs import BUCKET_ROWS, Capture, cuda_capture
from blendserve_core.engine.cuda.kernels import Kernels
from blendserve_core.engine.cuda.kv_pool import DeviceKVPool
from blendserve_core.engine.cuda.memory import page_bytes
from blendserve_core.engine.cuda.ops import FlashInferOps
from blendserve_core.engine.cuda.rank import PAGE_SIZE, SM_CHOICES, free_bytes
from blendserve_core.engine.cuda.sampling import CudaSampler, DeviceSampler
from blendserve_core.engine.cuda.split_sms import green_streams, one_stream
from blendserve_core.engine.cuda.step_runner import Overlap, StepRunner
from blendserve_core.engine.cuda.workspaces import Workspaces, graph_workspace_bytes
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.llama import Decoder
from blendserve_core.engine.sampler import Sampler
from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.cuda_measured import CudaMeasurement
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Capacity
from schemas.parameters import EngineOptions

MAX_SEQUENCES = 1024
MAX_STEP_TOKENS = 2048
# What serving leaves free beside the KV pool.
WORKSPACE_BYTES = 12 * 2**30


@dataclass
class Findings:
    """Rows of the table, and everything in detail."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def note(self, what: str, value: str, is_good: bool | None = None) -> None:
        verdict = {True: "ok", False: "BELOW TARGET", None: ""}[is_good]
        self.rows.append((what, value, verdict))
        print(f"{what}: {value} {verdict}", flush=True)

    def note_checks(self, name: str, checks: list[Check]) -> None:
        for check in checks:
            self.note(check.name, f"{check.value:.2e}", check.is_good)
        self.details[name] = [asdict(check) for check in checks]

    def table(self) -> str:
        widths = [max(len(row[i]) for row in self.rows) for i in range(3)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in self.rows)


@dataclass
class Bench:
    """``measured`` is there once the overlap section has run."""

    device: torch.device
    make_kernels: Callable[[], Kernels]
    folder: Path
    seconds: float
    dtype: torch.dtype = torch.bfloat16
    measured: CudaMeasurement | None = None

    @property
    def kernels(self) -> Kernels:
        return self.make_kernels()

    @property
    def measurement(self) -> CudaMeasurement:
        assert self.measured is not None, "the overlap section measures the device"
        return self.measured

    def operators(self) -> OperatorBench:
        folder = config_folder(self.folder / "llama-3-8b", LLAMA_3_8B)
        return OperatorBench.make(folder, "bfloat16", EngineOptions(), self.kernels, self.device, device_seconds)

    def cost(self) -> CostModel:
        return CostModel(llama_3_8b(), self.measurement.hardware, "overlapped", self.measurement.interference)

    def llama(self) -> Decoder:
        return random_model(ModelConfig.from_dict(LLAMA_3_8B), FlashInferOps(self.kernels), self.dtype, self.device)

    def page_bytes(self, page_size: int) -> int:
        return page_bytes(ModelConfig.from_dict(LLAMA_3_8B), self.dtype, page_size)

    def runner(self, model: Decoder, num_pages: int, overlap: Overlap, capture: Capture) -> StepRunner:
        pool = DeviceKVPool(model.config, num_pages, PAGE_SIZE, self.dtype, self.device)
        workspaces = Workspaces.allocate(self.device, graph_workspace_bytes(model.config, MAX_SEQUENCES + BUCKET_ROWS))
        setting = AttentionSetting.make(self.kernels, model.config, pool, workspaces, self.dtype, self.device)
        return StepRunner(model, setting, _capacity(model, num_pages), self.cost(), overlap, capture)

    def executor(self, model: Decoder, requests: RequestTable) -> MeteredExecutor:
        """With as much KV as there is memory for."""
        meter, device = IdleMeter(), self.device
        num_pages = int((free_bytes() - WORKSPACE_BYTES) // self.page_bytes(PAGE_SIZE))
        splits = {num_sms: MeteredLanes(green_streams(device, num_sms), meter) for num_sms in SM_CHOICES}
        overlap = Overlap(MeteredLanes(one_stream(device), meter), splits, self.measurement.overlap)
        runner = self.runner(model, num_pages, overlap, metered_capture(cuda_capture(), meter))
        sampler = CudaSampler(Sampler(requests, None), DeviceSampler(self.kernels), requests)
        return MeteredExecutor(CudaExecutor(model, runner, sampler, _capacity(model, num_pages)), meter)


def _capacity(model: Decoder, num_pages: int) -> Capacity:
    return Capacity(num_pages, PAGE_SIZE, MAX_STEP_TOKENS, MAX_SEQUENCES, model.config.max_context_tokens)
