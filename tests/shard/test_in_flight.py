"""What is noted of an executor that has its next step before the last one is finished."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from blendserve_core.schedule.step import Capacity, StepPlan, StepResult
from blendserve_core.shard.in_flight import noting, read_in_flight

RESULT = StepResult(token_ids=np.empty(0, dtype=np.int32), seconds=0.0)


class Launching:
    capacity = Capacity(1, 1, 1, 1, 1)

    def launch(self, step: StepPlan) -> StepPlan:
        return step

    def finish(self, launched: StepPlan) -> StepResult:
        return RESULT

    def execute(self, step: StepPlan) -> StepResult:
        return RESULT

    def may_be_followed(self, step: StepPlan) -> bool:
        return True

    def close(self) -> None:
        pass


def step_of(*requests: int) -> Any:
    return SimpleNamespace(seq_ids=np.array(requests))


def test_requests_of_both_steps_under_way_are_noted(tmp_path: Path) -> None:
    executor: Any = noting(Launching(), tmp_path)
    assert executor.may_be_followed(step_of(3))
    first = executor.launch(step_of(3, 1))
    assert read_in_flight(tmp_path).tolist() == [1, 3]
    second = executor.launch(step_of(3, 2))
    assert read_in_flight(tmp_path).tolist() == [1, 2, 3]
    executor.finish(first)
    executor.launch(step_of(2, 5))
    assert read_in_flight(tmp_path).tolist() == [2, 3, 5]
    executor.finish(second)
    executor.close()
