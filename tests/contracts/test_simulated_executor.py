"""The step contract on the simulator, whose sequences end at their true lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from executor_contract import Check, MakeExecutor, StepContract, float32_model_folder  # noqa: F401
from hand_scheduler import HandScheduler

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Capacity
from blendserve_core.sim.executor import FILLER_TOKEN_ID, SimulatedExecutor

EOS = 2


def true_length(sequence: int) -> int:
    return 3 + sequence % 5


class TestSimulator(StepContract):
    @pytest.fixture
    def make_executor(self) -> MakeExecutor:
        def make(folder: Path, requests: RequestTable, capacity: Capacity) -> SimulatedExecutor:
            lengths = np.array([true_length(sequence) for sequence in range(requests.num_requests)])
            return SimulatedExecutor(CostModel(llama_3_8b(), a100_80gb()), lengths, EOS, capacity)

        return make

    @pytest.fixture
    def check(self) -> Check:
        def check(scheduler: HandScheduler) -> None:
            for sequence in scheduler.running:
                outputs = scheduler.outputs(sequence)
                expected = [FILLER_TOKEN_ID] * (true_length(sequence) - 1) + [EOS] * len(outputs)
                assert outputs == expected[: len(outputs)]

        return check
