"""The one loop: schedule, execute, update. It is the same for every executor, the simulated one included."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from blendserve_core.schedule.scheduler import Finished, Scheduler
from blendserve_core.schedule.step import Executor, StepPlan, StepResult
from blendserve_core.trace import NoTrace, Tracer

FindStopped = Callable[[StepPlan, StepResult], frozenset[int]]
NOTHING_RAN = StepResult(token_ids=np.empty(0, dtype=np.int32), seconds=0.0)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as it went: what was asked, what came of it, what ended. ``schedule_s`` is the scheduler's own time."""

    step: StepPlan
    result: StepResult
    finished: list[Finished]
    schedule_s: float


def nothing_stops(step: StepPlan, result: StepResult) -> frozenset[int]:
    """For jobs without stop strings."""
    return frozenset()


@runtime_checkable
class LaunchingExecutor(Executor, Protocol):
    """An executor whose device works by itself: ``execute`` in two parts, with time for others between them."""

    def launch(self, step: StepPlan) -> Any: ...

    def finish(self, launched: Any) -> StepResult: ...


def run_steps(
    scheduler: Scheduler, executor: Executor, find_stopped: FindStopped = nothing_stops, tracer: Tracer | None = None
) -> Iterator[StepRecord]:
    """Run until every request has ended, or until the caller stops asking. ``find_stopped`` looks for stop strings.

    A launching executor is given the next step before the caller sees the last one's record, and works while the caller does.
    """
    tracer = tracer or NoTrace()
    is_launching = isinstance(executor, LaunchingExecutor)
    unseen: StepRecord | None = None
    while True:
        started = time.perf_counter()
        with tracer.span("scheduling"):
            step = scheduler.schedule()
        scheduled = time.perf_counter()
        finish = None if step is None else _start(executor, step)
        if unseen is not None:
            yield unseen
            unseen = None
        elif step is None:
            return
        if step is None or finish is None:
            continue  # having seen the last record, the caller may have brought more
        result = finish()
        executed = time.perf_counter()
        with tracer.span("rows"):
            stopped = find_stopped(step, result)
        with tracer.span("scheduling"):
            finished = scheduler.update(result, stopped)
        schedule_s = scheduled - started + time.perf_counter() - executed
        record = StepRecord(step, result, finished, schedule_s)
        if is_launching:
            unseen = record
        else:
            yield record


def _start(executor: Executor, step: StepPlan) -> Callable[[], StepResult]:
    """Start a step where the executor can, and say how to get its result."""
    if not step.num_tokens:
        return lambda: NOTHING_RAN
    if not isinstance(executor, LaunchingExecutor):
        return lambda: executor.execute(step)
    launched = executor.launch(step)
    return lambda: executor.finish(launched)
