"""The one loop: schedule, execute, update. It is the same for every executor, the simulated one included."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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


def run_steps(
    scheduler: Scheduler, executor: Executor, find_stopped: FindStopped = nothing_stops, tracer: Tracer | None = None
) -> Iterator[StepRecord]:
    """Run until every request has ended, or until the caller stops asking. ``find_stopped`` looks for stop strings."""
    tracer = tracer or NoTrace()
    while True:
        started = time.perf_counter()
        with tracer.span("scheduling"):
            step = scheduler.schedule()
        if step is None:
            return
        scheduled = time.perf_counter()
        result = executor.execute(step) if step.num_tokens else NOTHING_RAN
        executed = time.perf_counter()
        with tracer.span("rows"):
            stopped = find_stopped(step, result)
        with tracer.span("scheduling"):
            finished = scheduler.update(result, stopped)
        schedule_s = scheduled - started + time.perf_counter() - executed
        yield StepRecord(step, result, finished, schedule_s)
