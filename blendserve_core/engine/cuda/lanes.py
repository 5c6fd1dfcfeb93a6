"""Where a program's lanes run: the streams of a device, or, without one, this thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from blendserve_core.engine.cuda.program import Lane, Program, Record, Run, Wait

LaneSeconds = Callable[[], dict[Lane, float]]
"""Seconds that each lane was busy; may be asked once the step is done."""


class Lanes(Protocol):
    """Streams that split a device between compute-bound and memory-bound operators, in a way that has been chosen."""

    def issue(self, program: Program, is_timed: bool) -> LaneSeconds | None:
        """Start a program behind what the current stream was given, and have the current stream go on behind it."""
        ...


class HostLanes:
    """This thread takes all lanes, in the order of the program."""

    def issue(self, program: Program, is_timed: bool) -> LaneSeconds | None:
        seconds = dict.fromkeys(Lane, 0.0)
        for instruction in program:
            if isinstance(instruction, Run):
                started = time.perf_counter()
                instruction.call()
                seconds[instruction.lane] += time.perf_counter() - started
        return (lambda: seconds) if is_timed else None


@dataclass(frozen=True, slots=True)
class CudaLanes:
    """One stream per lane; several lanes may have the same."""

    streams: dict[Lane, torch.cuda.Stream]

    def issue(self, program: Program, is_timed: bool) -> LaneSeconds | None:
        events: dict[str, torch.cuda.Event] = {}
        timer = SegmentTimer() if is_timed else None
        self._fork()
        for instruction in program:
            stream = self.streams[instruction.lane]
            if isinstance(instruction, Run):
                with torch.cuda.stream(stream), timed(timer, instruction.lane, stream):
                    instruction.call()
            elif isinstance(instruction, Record):
                events[instruction.event] = torch.cuda.Event()
                events[instruction.event].record(stream)
            elif isinstance(instruction, Wait):
                stream.wait_event(events[instruction.event])
        self._join()
        return timer.seconds if timer else None

    def _fork(self) -> None:
        start = torch.cuda.current_stream().record_event()
        for stream in set(self.streams.values()):
            stream.wait_event(start)

    def _join(self) -> None:
        for stream in set(self.streams.values()):
            torch.cuda.current_stream().wait_event(stream.record_event())


class SegmentTimer:
    """Pairs of events around each operation. An operation that waited for another lane starts its pair after the wait."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Lane, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def segment(self, lane: Lane, stream: torch.cuda.Stream) -> Iterator[None]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        yield
        end.record(stream)
        self._pairs.append((lane, start, end))

    def seconds(self) -> dict[Lane, float]:
        busy = dict.fromkeys(Lane, 0.0)
        for lane, start, end in self._pairs:
            busy[lane] += start.elapsed_time(end) / 1e3
        return busy


@contextmanager
def timed(timer: SegmentTimer | None, lane: Lane, stream: torch.cuda.Stream) -> Iterator[None]:
    if timer is None:
        yield
        return
    with timer.segment(lane, stream):
        yield
