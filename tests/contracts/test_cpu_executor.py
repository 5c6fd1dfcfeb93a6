"""The executor contract on the CPU engine's torch reference, with plain and with prepacked linears."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from executor_contract import ExecutorContract, MakeExecutor, float32_model_folder, reference  # noqa: F401

from blendserve_core.engine.cpu.attention import TorchAttention
from blendserve_core.engine.cpu.executor import CpuExecutor
from blendserve_core.engine.cpu.ops import PackedOps
from blendserve_core.engine.model.ops import TorchOps
from blendserve_core.engine.model.weights import load_decoder
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Capacity


class TestTorchReference(ExecutorContract):
    @pytest.fixture(params=[TorchOps, PackedOps], ids=["plain", "packed"])
    def make_executor(self, request: pytest.FixtureRequest) -> MakeExecutor:
        def make(folder: Path, requests: RequestTable, capacity: Capacity) -> CpuExecutor:
            model = load_decoder(folder, request.param(), torch.float32)
            attention = TorchAttention(model.config, capacity.num_pages, capacity.page_size, torch.float32)
            return CpuExecutor(model, attention, requests, capacity)

        return make
