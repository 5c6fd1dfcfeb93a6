"""The executor contract on the native CPU kernels, with shared prefixes read once whether that pays or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from executor_contract import ExecutorContract, MakeExecutor, float32_model_folder, reference  # noqa: F401

from blendserve_core.engine.cpu.executor import CpuExecutor
from blendserve_core.engine.cpu.native import grouping
from blendserve_core.engine.cpu.native.attention import NativeAttention
from blendserve_core.engine.cpu.native.kernels import Isa, NativeKernels
from blendserve_core.engine.cpu.native.library import NativeUnavailableError
from blendserve_core.engine.cpu.native.ops import NativeOps
from blendserve_core.engine.model.weights import load_decoder
from blendserve_core.perf.cascade import CascadeCosts
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Capacity


@pytest.fixture(scope="module", params=[Isa.PORTABLE, None], ids=["portable", "dispatched"])
def kernels(request: pytest.FixtureRequest) -> NativeKernels:
    try:
        return NativeKernels(num_threads=2, isa=request.param)
    except NativeUnavailableError as error:
        pytest.skip(str(error))


class TestNativeKernels(ExecutorContract):
    @pytest.fixture(params=[False, True], ids=["by cost", "always cascade"])
    def make_executor(self, request: pytest.FixtureRequest, kernels: NativeKernels, monkeypatch) -> MakeExecutor:
        if request.param:
            monkeypatch.setattr(grouping, "shared_readers", lambda step, _costs: grouping.prefix_readers(step))

        def make(folder: Path, requests: RequestTable, capacity: Capacity) -> CpuExecutor:
            model = load_decoder(folder, NativeOps(kernels), torch.float32)
            attention = NativeAttention(model.config, kernels, capacity.num_pages, torch.float32, CascadeCosts())
            return CpuExecutor(model, attention, requests, capacity)

        return make
