"""One scheduler's run over some requests, on the simulated executor."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.plan.lengths import Observations
from blendserve_core.run import run_steps
from blendserve_core.schedule.scheduler import Scheduler
from blendserve_core.schedule.step import Executor


@dataclass(frozen=True, slots=True)
class Part:
    """What came of it. F = finished requests; ``unfinished`` holds the outputs so far of those that were begun.

    schedule_s [num_steps] the scheduler's own time;  finished, num_output_tokens [F]
    """

    seconds: float
    tc_s: float
    tm_s: float
    schedule_s: NDArray[np.float64]
    num_cached_tokens: int
    num_retractions: int
    num_recomputed_tokens: int
    finished: NDArray[np.int64]
    num_output_tokens: NDArray[np.int64]
    unfinished: dict[int, NDArray[np.int32]]


class PartRun:
    """A part that runs, a step at a time."""

    def __init__(self, scheduler: Scheduler, executor: Executor) -> None:
        self._scheduler = scheduler
        self._records = run_steps(scheduler, executor)
        self.seconds = 0.0
        self._tc_s, self._tm_s, self._num_cached = 0.0, 0.0, 0
        self._schedule_s, self._finished, self._num_outputs = array("d"), array("q"), array("q")

    @property
    def num_finished(self) -> int:
        return len(self._finished)

    def step(self) -> bool:
        """Run one more step, False when every request has ended. Raises ValueError for a request that cannot be served."""
        record = next(self._records, None)
        if record is None:
            return False
        self.seconds += record.result.seconds
        self._tc_s += record.result.compute_s or 0.0
        self._tm_s += record.result.memory_s or 0.0
        self._schedule_s.append(record.schedule_s)
        for ended in record.finished:
            if ended.finish_reason == "error":
                raise ValueError(f"request {ended.request} cannot be served: {ended.error}")
            self._finished.append(ended.request)
            self._num_outputs.append(len(ended.token_ids))
            self._num_cached += ended.num_cached_tokens
        return True

    def part(self) -> Part:
        """What has come of it so far."""
        return Part(
            seconds=self.seconds,
            tc_s=self._tc_s,
            tm_s=self._tm_s,
            schedule_s=np.array(self._schedule_s),
            num_cached_tokens=self._num_cached,
            num_retractions=self._scheduler.counters.num_retractions,
            num_recomputed_tokens=self._scheduler.counters.num_recomputed_tokens,
            finished=np.array(self._finished, dtype=np.int64),
            num_output_tokens=np.array(self._num_outputs, dtype=np.int64),
            unfinished=self._scheduler.unfinished_outputs(),
        )


def run_part(scheduler: Scheduler, executor: Executor, stop_at: int) -> Part:
    """Run until ``stop_at`` requests have ended, or every one."""
    run = PartRun(scheduler, executor)
    while run.num_finished < stop_at and run.step():
        pass
    return run.part()


def observations(parts: list[Part]) -> Observations:
    """Finished samples with their lengths, and those still running with what they have so far."""
    running = [(request, len(tokens)) for part in parts for request, tokens in part.unfinished.items()]
    requests = [part.finished for part in parts] + [np.array([request for request, _ in running], dtype=np.int64)]
    lengths = [part.num_output_tokens for part in parts] + [np.array([length for _, length in running], dtype=np.int64)]
    num_finished = sum(len(part.finished) for part in parts)
    return Observations(
        request=np.concatenate(requests),
        num_tokens=np.concatenate(lengths).astype(np.int32),
        is_finished=np.arange(num_finished + len(running)) < num_finished,
    )
