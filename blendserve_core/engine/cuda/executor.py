"""The CUDA executor: runs step plans on a device, and can be given a step before the one before it is done."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from blendserve_core.engine.cuda.lanes import LaneSeconds
from blendserve_core.engine.cuda.program import Lane
from blendserve_core.engine.cuda.sampling import CudaSampler, PendingSample, nothing_sampled, sampled_before
from blendserve_core.engine.cuda.step_runner import StepRunner
from blendserve_core.engine.model.llama import Decoder
from blendserve_core.engine.parallel.group import Group, OneRank
from blendserve_core.schedule.step import Capacity, StepPlan, StepResult

# While other ranks may die, waiting is asking again and again.
POLL_S = 50e-6
DYING_S = 5.0


class Followers(Protocol):
    """The other ranks of a tensor-parallel group, as the first one sees them."""

    def send(self, step: StepPlan) -> None:
        """Have every other rank run the step too. Raises RankLostError where one has died."""
        ...

    def check(self, wait_s: float = 0.0) -> None:
        """Raises RankLostError where a rank has died, or does within ``wait_s``."""
        ...

    def close(self) -> None: ...


class NoFollowers:
    """A model that is not cut."""

    def send(self, step: StepPlan) -> None:
        pass

    def check(self, wait_s: float = 0.0) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Launched:
    """A step on its way."""

    started: float
    sample: PendingSample
    lane_seconds: LaneSeconds | None


class CudaExecutor:
    """An :class:`~blendserve_core.schedule.step.Executor` on one device, or the first rank of a tensor-parallel group."""

    def __init__(
        self,
        model: Decoder,
        runner: StepRunner,
        sampler: CudaSampler,
        capacity: Capacity,
        followers: Followers | None = None,
        group: Group | None = None,
    ) -> None:
        self._model = model
        self._runner = runner
        self._sampler = sampler
        self._capacity = capacity
        self._followers = followers or NoFollowers()
        self._group = group or OneRank()
        self._sampled_last: Tensor | None = None
        self._finished_at = 0.0

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def execute(self, step: StepPlan) -> StepResult:
        return self.finish(self.launch(step))

    def may_be_followed(self, step: StepPlan) -> bool:
        """The next step's input stays on the device, unless the host samples some of it: then that is waited for."""
        return self._sampler.is_on_device(step)

    @torch.inference_mode()
    def launch(self, step: StepPlan) -> Launched:
        """Start a step; it waits for the device only where a row must be sampled on the host.

        Raises RankLostError where another rank of the group has died.
        """
        started = time.perf_counter()
        self._sampler.follow(step)
        self._followers.send(step)
        try:
            hidden, lane_seconds = self._runner.run(step, sampled_before(step, self._sampled_last, self._group))
            sample = self._sampler.sample(self._model.logits(hidden).float(), step) if len(hidden) else nothing_sampled(hidden)
        except RuntimeError:
            # Connections of a process that dies break before it counts as dead.
            self._followers.check(DYING_S)
            raise
        self._sampled_last = sample.on_device
        return Launched(started, sample, lane_seconds)

    def finish(self, launched: Launched) -> StepResult:
        """Wait for a step and take its tokens."""
        done = launched.sample.done
        if isinstance(self._followers, NoFollowers) and done is not None:
            done.synchronize()
        while done is not None and not done.query():
            self._followers.check()
            time.sleep(POLL_S)
        sampled = launched.sample.take()
        busy = launched.lane_seconds() if launched.lane_seconds else None
        # A step that was launched behind another one began when that had ended.
        began, self._finished_at = max(launched.started, self._finished_at), time.perf_counter()
        return StepResult(
            token_ids=sampled.token_ids,
            seconds=self._finished_at - began,
            compute_s=busy[Lane.GEMM] + busy[Lane.REDUCE] if busy else None,
            memory_s=busy[Lane.ATTENTION] if busy else None,
            logprobs=sampled.logprobs,
            completed=sampled.completed,
        )

    def close(self) -> None:
        """End the other ranks; memory goes with the object."""
        self._followers.close()
        self._group.leave()
