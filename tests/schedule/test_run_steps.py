"""The loop, around an executor whose device works by itself and around one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from checking_executor import CheckingExecutor
from request_tables import request_table

from blendserve_core.kv.segments import no_segments
from blendserve_core.run import StepRecord, run_steps
from blendserve_core.schedule.policies.ordered import OrderedAdmission
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.schedule.step import Capacity, StepPlan, StepResult

CAPACITY = Capacity(num_pages=64, page_size=4, max_step_tokens=16, max_sequences=2, max_sequence_tokens=64)
REQUESTS = request_table([[1, 2, 3], [4, 5], [6, 7, 8, 9], [3, 1]], max_tokens=[4, 2, 3, 5])


@dataclass
class Launching(CheckingExecutor):
    """Runs a step when it is launched, and writes down what happens when."""

    capacity: Capacity
    happened: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.capacity)

    def launch(self, step: StepPlan) -> StepResult:
        self.happened.append("launch")
        return super().execute(step)

    def finish(self, launched: StepResult) -> StepResult:
        self.happened.append("finish")
        return launched

    def may_be_followed(self, step: StepPlan) -> bool:
        return False


def loop(executor: CheckingExecutor, num_first: int = 4) -> tuple[OrderedAdmission, Iterator[StepRecord]]:
    policy = OrderedAdmission(np.arange(num_first))
    order = np.arange(4)
    scheduler = Scheduler(REQUESTS, order, no_segments(4), order, policy, CAPACITY, ())
    return policy, run_steps(scheduler, executor)


def test_both_kinds_of_executor_give_the_same_steps_and_texts() -> None:
    launching, plain = Launching(CAPACITY), CheckingExecutor(CAPACITY)
    records = [list(loop(executor)[1]) for executor in (launching, plain)]
    assert len(records[0]) == len(records[1])
    for ours, theirs in zip(*records, strict=True):
        assert ours.step.token_ids.tolist() == theirs.step.token_ids.tolist()
        assert [end.token_ids.tolist() for end in ours.finished] == [end.token_ids.tolist() for end in theirs.finished]


def test_the_device_has_the_next_step_while_the_caller_sees_the_last_record() -> None:
    executor = Launching(CAPACITY)
    for _ in loop(executor)[1]:
        executor.happened.append("seen")
    num_steps = len(executor.steps)
    middle = ["finish", "launch", "seen"] * (num_steps - 1)
    assert executor.happened == ["launch", *middle, "finish", "seen"]


@pytest.mark.parametrize("executor", [Launching(CAPACITY), CheckingExecutor(CAPACITY)], ids=["launching", "plain"])
def test_work_that_the_caller_brings_at_the_very_end_is_done(executor: CheckingExecutor) -> None:
    policy, records = loop(executor, num_first=1)
    finished, to_bring = [], [np.array([1]), np.array([2, 3])]
    for record in records:
        finished += [end.request for end in record.finished]
        if record.finished and to_bring:
            policy.add(to_bring.pop(0))
    assert sorted(finished) == [0, 1, 2, 3]
