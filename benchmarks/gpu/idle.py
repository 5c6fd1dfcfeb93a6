"""How long the device has nothing to do between the steps of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from blendserve_core.engine.cuda.graphs import Capture, Replay
from blendserve_core.engine.cuda.lanes import Lanes, LaneSeconds
from blendserve_core.engine.cuda.program import Program
from blendserve_core.schedule.step import LaunchingExecutor, StepPlan


@dataclass
class IdleMeter:
    """Two events a step: when the device comes to its layers, and when all that the step was given is done."""

    begins: list[torch.cuda.Event] = field(default_factory=list)
    ends: list[torch.cuda.Event] = field(default_factory=list)

    def begin(self) -> None:
        if not torch.cuda.is_current_stream_capturing():
            self.begins.append(_now())

    def end(self) -> None:
        self.ends.append(_now())

    def seconds(self) -> float:
        """From the end of each step to the layers of the next, once all is done."""
        torch.cuda.synchronize()
        pairs = zip(self.ends, self.begins[1:], strict=False)
        return sum(max(end.elapsed_time(begin), 0.0) for end, begin in pairs) / 1e3

    def reset(self) -> None:
        self.begins.clear()
        self.ends.clear()


@dataclass(frozen=True, slots=True)
class MeteredLanes:
    lanes: Lanes
    meter: IdleMeter

    def issue(self, program: Program, is_timed: bool) -> LaneSeconds | None:
        self.meter.begin()
        return self.lanes.issue(program, is_timed)


def metered_capture(capture: Capture, meter: IdleMeter) -> Capture:
    def metered(start: Replay) -> Replay:
        replay = capture(start)

        def begin_and_replay() -> None:
            meter.begin()
            replay()

        return begin_and_replay

    return metered


@dataclass(frozen=True, slots=True)
class MeteredExecutor:
    """Around a CudaExecutor whose lanes and captures are metered too."""

    executor: LaunchingExecutor
    meter: IdleMeter

    @property
    def capacity(self):
        return self.executor.capacity

    def launch(self, step: StepPlan):
        launched = self.executor.launch(step)
        self.meter.end()
        return launched

    def finish(self, launched):
        return self.executor.finish(launched)

    def may_be_followed(self, step: StepPlan) -> bool:
        return self.executor.may_be_followed(step)

    def execute(self, step: StepPlan):
        return self.finish(self.launch(step))

    def close(self) -> None:
        self.executor.close()


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
