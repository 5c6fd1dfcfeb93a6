"""The executor contract on the CUDA engine, without a device: whole steps, steps cut in two, and replayed steps."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from cuda_on_cpu import call_again, cuda_executor
from executor_contract import ExecutorContract, MakeExecutor, float32_model_folder, reference  # noqa: F401
from halving import cut_in_half
from random_lanes import RandomLanes

from blendserve_core.engine.cuda import graphs, step_runner
from blendserve_core.engine.cuda.executor import CudaExecutor
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Capacity


class TestWholeSteps(ExecutorContract):
    @pytest.fixture(params=[10**9, 0], ids=["every decode alone", "always cascade"])
    def make_executor(self, request: pytest.FixtureRequest) -> MakeExecutor:
        def make(folder: Path, requests: RequestTable, capacity: Capacity) -> CudaExecutor:
            return cuda_executor(folder, requests, capacity, min_tokens_saved=request.param)

        return make


class TestOverlappedSteps(ExecutorContract):
    """Every step of two sequences or more is cut in two, and runs in another legal order each time."""

    @pytest.fixture
    def make_executor(self, monkeypatch) -> MakeExecutor:
        monkeypatch.setattr(step_runner, "choose_cut", cut_in_half)

        def make(folder: Path, requests: RequestTable, capacity: Capacity) -> CudaExecutor:
            return cuda_executor(folder, requests, capacity, lanes=RandomLanes(random.Random(5)))

        return make


class TestReplayedSteps(ExecutorContract):
    """Decode-only steps come from a capture, filled up to a multiple of four rows."""

    @pytest.fixture
    def make_executor(self, monkeypatch) -> MakeExecutor:
        monkeypatch.setattr(graphs, "MIN_OCCURRENCES", 1)
        monkeypatch.setattr(graphs, "BUCKET_ROWS", 4)

        def make(folder: Path, requests: RequestTable, capacity: Capacity) -> CudaExecutor:
            return cuda_executor(folder, requests, capacity, capture=call_again, min_tokens_saved=10**9)

        return make
