"""Sampling on the device, and on the host where a row asks for what only the host knows.

The device follows the rules and draws the random numbers of :mod:`blendserve_core.engine.sampling`: truncation is FlashInfer's,
without sorting, and a row is drawn by its own uniform number, so its token depends on nothing outside the row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blendserve_core.engine.cuda.kernels import Kernels
from blendserve_core.engine.cuda.staging import to_device
from blendserve_core.engine.parallel.group import Group
from blendserve_core.engine.sampler import Sampled, Sampler
from blendserve_core.engine.sampling import MIN_TEMPERATURE, RowParameters, invert_cumulative
from blendserve_core.requests import RequestTable, SamplingColumns
from blendserve_core.schedule.step import Logprobs, StepPlan


@dataclass(frozen=True, slots=True)
class PendingSample:
    """Tokens on their way: in ``token_ids`` (host memory) once ``done``, but for ``host_rows``, which the host has sampled.

    ``on_device`` are the same as the next step's kernels may read them.
    """

    on_device: Tensor
    token_ids: Tensor
    done: torch.cuda.Event | None
    host_rows: NDArray[np.int64]
    on_host: Sampled | None

    def take(self) -> Sampled:
        """Once ``done``."""
        token_ids = self.token_ids.numpy()
        if self.on_host is None:
            return Sampled(token_ids)
        token_ids[self.host_rows] = self.on_host.token_ids
        logprobs = _spread(self.on_host.logprobs, self.host_rows, len(token_ids))
        return Sampled(token_ids, logprobs, self.on_host.completed)


class CudaSampler:
    """Rows with penalties, formats or log-probabilities go over the host, and the step waits for them; others do not."""

    def __init__(self, host: Sampler, device: DeviceSampler, requests: RequestTable) -> None:
        self._host = host
        self._device = device
        self._sampling = requests.sampling
        self._needs_host = needs_host(requests.sampling)

    def follow(self, step: StepPlan) -> None:
        """Take in a step before it runs."""
        self._host.follow(step)

    def sample(self, logits: Tensor, step: StepPlan) -> PendingSample:
        """Start sampling from ``logits`` [N, V] float32 on the device, one row for each sampled sequence of the step."""
        seq_ids, num_outputs = step.seq_ids[step.is_sampled], step.num_outputs[step.is_sampled]
        rows = np.flatnonzero(self._needs_host[seq_ids])
        on_host = self._sample_on_host(logits, step, rows) if len(rows) else None
        parameters = RowParameters.of_sequences(self._sampling, seq_ids, num_outputs, logits.shape[1])
        token_ids = self._device.sample(logits, parameters)
        return PendingSample(token_ids, *fetch(token_ids), rows, on_host)

    def is_on_device(self, step: StepPlan) -> bool:
        """Whether the device alone samples a step's tokens."""
        return not self._needs_host[step.seq_ids[step.is_sampled]].any()

    def _sample_on_host(self, logits: Tensor, step: StepPlan, rows: NDArray[np.int64]) -> Sampled:
        some = replace(step, is_sampled=step.is_sampled & self._needs_host[step.seq_ids])
        return self._host.sample(logits[to_device(rows, logits.device)].cpu(), some)


class DeviceSampler:
    """Rows of logits [N, V] float32 to tokens [N] int32, both on the device, without waiting for it."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def sample(self, logits: Tensor, parameters: RowParameters) -> Tensor:
        token_ids = logits.argmax(dim=-1).to(torch.int32)
        rows = np.flatnonzero(parameters.temperature >= MIN_TEMPERATURE)
        if not len(rows):
            return token_ids
        if len(rows) == len(token_ids):
            return self._draw(logits, parameters)
        places = to_device(rows, logits.device)
        return token_ids.index_copy_(0, places, self._draw(logits[places], parameters.rows(rows)))

    def _draw(self, logits: Tensor, parameters: RowParameters) -> Tensor:
        device = logits.device
        probs = (logits / to_device(parameters.temperature, device)[:, None]).softmax(dim=-1)
        if parameters.top_k.any():
            top_k = np.where(parameters.top_k > 0, parameters.top_k, logits.shape[1]).astype(np.int32)
            probs = self._kernels.top_k_renorm_probs(probs, to_device(top_k, device))
        if (parameters.top_p < 1.0).any():
            probs = self._kernels.top_p_renorm_probs(probs, to_device(parameters.top_p, device))
        if parameters.min_p.any():
            least = to_device(parameters.min_p, device)[:, None] * probs.amax(dim=-1, keepdim=True)
            probs = probs.masked_fill(probs < least, 0.0)
        return invert_cumulative(probs, to_device(parameters.uniform, device)).to(torch.int32)


def needs_host(sampling: SamplingColumns) -> NDArray[np.bool_]:
    """Which requests [R] have penalties, formats or log-probabilities."""
    has_penalty = (sampling.repetition_penalty != 1) | (sampling.presence_penalty != 0) | (sampling.frequency_penalty != 0)
    return has_penalty | (sampling.response_format >= 0) | (sampling.logprobs >= 0)


def sampled_before(step: StepPlan, sampled: Tensor | None, group: Group) -> Tensor | None:
    """What the step before ``step`` sampled: the first rank has it, and where the step takes any, the others get it."""
    if group.size > 1 and sampled is not None and (step.token_ids < 0).any():
        return group.broadcast(sampled)
    return sampled


def nothing_sampled(hidden: Tensor) -> PendingSample:
    """Of a step without a sampled row: no tokens, once all of it is done."""
    token_ids = hidden.new_empty(0, dtype=torch.int32)
    return PendingSample(token_ids, *fetch(token_ids), np.empty(0, dtype=np.int64), None)


def fetch(token_ids: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A copy on the host, and the event that says when it is there; None where it is at once."""
    if not token_ids.is_cuda:
        return token_ids, None
    on_host = torch.empty(token_ids.shape, dtype=token_ids.dtype, pin_memory=True)
    on_host.copy_(token_ids, non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    return on_host, done


def _spread(logprobs: Logprobs | None, rows: NDArray[np.int64], num_rows: int) -> Logprobs | None:
    """From those of some rows to those of all, with nan and -1 elsewhere."""
    if logprobs is None:
        return None
    shape = num_rows, logprobs.top.shape[1]
    chosen, top = np.full(num_rows, np.nan, dtype=np.float32), np.full(shape, np.nan, dtype=np.float32)
    top_token_ids = np.full(shape, -1, dtype=np.int32)
    chosen[rows], top[rows], top_token_ids[rows] = logprobs.chosen, logprobs.top, logprobs.top_token_ids
    return Logprobs(chosen, top_token_ids, top)
