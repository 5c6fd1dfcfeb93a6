"""The one loop: schedule, execute, update. It is the same for every executor, the simulated one included."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from blendserve_core.schedule.scheduler import Finished, Scheduler
from blendserve_core.schedule.step import Executor, LaunchingExecutor, StepPlan, StepResult
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
    """Run until every request has ended, or until the caller stops asking. ``find_stopped`` looks for stop strings.

    A launching executor has a step to work on while the caller sees the record of the one before. Where a step may be followed,
    the next one is launched before the tokens of this one are there; where not, as soon as they are.
    """
    loop = _Loop(scheduler, executor, find_stopped, tracer or NoTrace())
    is_launching = isinstance(executor, LaunchingExecutor)
    under_way: _UnderWay | None = None
    unseen: StepRecord | None = None
    while True:
        if under_way is None:
            under_way = loop.start(scheduler.schedule)
            if unseen is not None:
                yield unseen
                unseen = None
            elif under_way is None:
                return
            if under_way is None:
                continue  # having seen the last record, the caller may have brought more
        following = loop.start(scheduler.schedule_ahead) if loop.may_be_followed(under_way.step) else None
        record = loop.end(under_way)
        under_way = following
        if is_launching and following is None:
            unseen = record
        else:
            yield record


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A step that was started, how to get its result, and what scheduling it took."""

    step: StepPlan
    finish: Callable[[], StepResult]
    schedule_s: float


@dataclass(frozen=True, slots=True)
class _Loop:
    """Starts steps and takes in what came of them."""

    scheduler: Scheduler
    executor: Executor
    find_stopped: FindStopped
    tracer: Tracer

    def may_be_followed(self, step: StepPlan) -> bool:
        executor = self.executor
        return isinstance(executor, LaunchingExecutor) and step.num_tokens > 0 and executor.may_be_followed(step)

    def start(self, schedule: Callable[[], StepPlan | None]) -> _UnderWay | None:
        """Start the step that ``schedule`` gives, where the executor can."""
        started = time.perf_counter()
        with self.tracer.span("scheduling"):
            step = schedule()
        schedule_s = time.perf_counter() - started
        return None if step is None else _UnderWay(step, _launch(self.executor, step), schedule_s)

    def end(self, under_way: _UnderWay) -> StepRecord:
        """Wait for a step, and let scheduler and stop strings know its tokens."""
        result = under_way.finish()
        executed = time.perf_counter()
        step, result = self.scheduler.of_running(under_way.step, result)
        with self.tracer.span("rows"):
            stopped = self.find_stopped(step, result)
        with self.tracer.span("scheduling"):
            finished = self.scheduler.update(result, stopped)
        return StepRecord(step, result, finished, under_way.schedule_s + time.perf_counter() - executed)


def _launch(executor: Executor, step: StepPlan) -> Callable[[], StepResult]:
    """Start a step where the executor can, and say how to get its result."""
    if not step.num_tokens:
        return lambda: NOTHING_RAN
    if not isinstance(executor, LaunchingExecutor):
        return lambda: executor.execute(step)
    launched = executor.launch(step)
    return lambda: executor.finish(launched)
