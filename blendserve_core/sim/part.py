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


def run_part(scheduler: Scheduler, executor: Executor, stop_at: int | None = None) -> Part:
    """Run until every request has ended, or ``stop_at`` of them. Raises ValueError for a request that cannot be served."""
    seconds, tc_s, tm_s, num_cached = 0.0, 0.0, 0.0, 0
    schedule_s, finished, num_outputs = array("d"), array("q"), array("q")
    for record in run_steps(scheduler, executor):
        seconds += record.result.seconds
        tc_s += record.result.compute_s or 0.0
        tm_s += record.result.memory_s or 0.0
        schedule_s.append(record.schedule_s)
        for ended in record.finished:
            if ended.finish_reason == "error":
                raise ValueError(f"request {ended.request} cannot be served: {ended.error}")
            finished.append(ended.request)
            num_outputs.append(len(ended.token_ids))
            num_cached += ended.num_cached_tokens
        if stop_at is not None and len(finished) >= stop_at:
            break
    return Part(
        seconds=seconds,
        tc_s=tc_s,
        tm_s=tm_s,
        schedule_s=np.array(schedule_s),
        num_cached_tokens=num_cached,
        num_retractions=scheduler.counters.num_retractions,
        num_recomputed_tokens=scheduler.counters.num_recomputed_tokens,
        finished=np.array(finished, dtype=np.int64),
        num_output_tokens=np.array(num_outputs, dtype=np.int64),
        unfinished=scheduler.unfinished_outputs(),
    )


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
