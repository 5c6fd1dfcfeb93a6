"""The CUDA executor: runs step plans on a device, and can be given a step before the one before it is done."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blendserve_core.engine.cuda.lanes import LaneSeconds
from blendserve_core.engine.cuda.program import Lane
from blendserve_core.engine.cuda.sampling import DeviceSampler
from blendserve_core.engine.cuda.step_runner import StepRunner
from blendserve_core.engine.model.llama import Decoder
from blendserve_core.engine.penalties import Penalties
from blendserve_core.engine.sampling import RowParameters, logprobs_of
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Capacity, Logprobs, StepPlan, StepResult


class Followers(Protocol):
    """The other ranks of a tensor-parallel group, as the first one sees them."""

    def send(self, step: StepPlan) -> None:
        """Have every other rank run the step too. Raises RankLostError where one has died."""
        ...

    def wait(self, token_ids: Tensor) -> None:
        """Until the step's tokens have come to the host. Raises RankLostError where a rank dies meanwhile."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Launched:
    """A step on its way: its tokens will be in ``token_ids``, host memory, once ``done``."""

    started: float
    token_ids: Tensor
    done: torch.cuda.Event | None
    logprobs: Logprobs | None
    lane_seconds: LaneSeconds | None


class CudaExecutor:
    """An :class:`~blendserve_core.schedule.step.Executor` on one device, or the first rank of a tensor-parallel group."""

    def __init__(
        self,
        model: Decoder,
        runner: StepRunner,
        sampler: DeviceSampler,
        requests: RequestTable,
        capacity: Capacity,
        device: torch.device,
        followers: Followers | None = None,
    ) -> None:
        self._model = model
        self._runner = runner
        self._sampler = sampler
        self._requests = requests
        self._capacity = capacity
        self._device = device
        self._followers = followers
        self._penalties = Penalties(requests)

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def execute(self, step: StepPlan) -> StepResult:
        return self.finish(self.launch(step))

    @torch.inference_mode()
    def launch(self, step: StepPlan) -> Launched:
        """Start a step. It waits for the device only where rows ask for log-probabilities or penalties."""
        started = time.perf_counter()
        self._penalties.follow(step)
        if self._followers is not None:
            self._followers.send(step)
        hidden, lane_seconds = self._runner.run(step)
        token_ids, logprobs = self._sample(hidden, step)
        return Launched(started, *self._fetch(token_ids), logprobs, lane_seconds)

    def finish(self, launched: Launched) -> StepResult:
        """Wait for a step and take its tokens."""
        if self._followers is not None:
            self._followers.wait(launched.token_ids)
        if launched.done is not None:
            launched.done.synchronize()
        busy = launched.lane_seconds() if launched.lane_seconds else None
        return StepResult(
            token_ids=launched.token_ids.numpy(),
            seconds=time.perf_counter() - launched.started,
            compute_s=busy[Lane.GEMM] + busy[Lane.REDUCE] if busy else None,
            memory_s=busy[Lane.ATTENTION] if busy else None,
            logprobs=launched.logprobs,
        )

    def close(self) -> None:
        """End the other ranks; memory goes with the object."""
        if self._followers is not None:
            self._followers.close()

    def _sample(self, hidden: Tensor, step: StepPlan) -> tuple[Tensor, Logprobs | None]:
        if not len(hidden):
            return torch.empty(0, dtype=torch.int32, device=self._device), None
        seq_ids, num_outputs = step.seq_ids[step.is_sampled], step.num_outputs[step.is_sampled]
        logits = self._model.logits(hidden).float()
        sampling = self._requests.sampling
        parameters = RowParameters.of_sequences(sampling, seq_ids, num_outputs, logits.shape[1])
        token_ids = self._sampler.sample(self._penalised(logits, seq_ids), parameters)
        return token_ids, self._logprobs(logits, token_ids, sampling.logprobs[seq_ids])

    def _penalised(self, logits: Tensor, seq_ids: NDArray[np.int64]) -> Tensor:
        """Rows with penalties go over the host, where their outputs are known."""
        rows = np.flatnonzero(self._penalties.is_penalised[seq_ids])
        if not len(rows):
            return logits
        places = torch.from_numpy(rows).to(self._device)
        changed = self._penalties.apply(logits[places].cpu(), seq_ids[rows])
        return logits.index_copy(0, places, changed.to(self._device))

    def _logprobs(self, logits: Tensor, token_ids: Tensor, num_top: NDArray[np.int32]) -> Logprobs | None:
        if not (num_top >= 0).any():
            return None
        return logprobs_of(logits.cpu(), token_ids.cpu().numpy(), num_top)

    def _fetch(self, token_ids: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        if self._device.type != "cuda":
            return token_ids, None
        on_host = torch.empty(token_ids.shape, dtype=token_ids.dtype, pin_memory=True)
        on_host.copy_(token_ids, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return on_host, done
