"""The CPU executor: runs step plans on a decoder, an attention over paged KV, and a sampler."""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blendserve_core.engine.cpu.attention import PagedAttention
from blendserve_core.engine.model.llama import Decoder
from blendserve_core.engine.penalties import Penalties
from blendserve_core.engine.sampling import RowParameters, logprobs_of, sample
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Capacity, Logprobs, StepPlan, StepResult

NOTHING_SAMPLED = np.empty(0, dtype=np.int32), None


class CpuExecutor:
    """An :class:`~blendserve_core.schedule.step.Executor` in this process. ``attention`` holds ``capacity.num_pages`` pages."""

    def __init__(self, model: Decoder, attention: PagedAttention, requests: RequestTable, capacity: Capacity) -> None:
        self._model = model
        self._attention = attention
        self._requests = requests
        self._capacity = capacity
        self._penalties = Penalties(requests)

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    @torch.inference_mode()
    def execute(self, step: StepPlan) -> StepResult:
        started = time.perf_counter()
        self._penalties.follow(step)
        self._attention.begin_step(step)
        hidden = self._model.forward(torch.from_numpy(step.token_ids), self._attention.attend)
        token_ids, logprobs = self._sample(hidden, step) if step.is_sampled.any() else NOTHING_SAMPLED
        return StepResult(token_ids=token_ids, seconds=time.perf_counter() - started, logprobs=logprobs)

    def close(self) -> None:
        """Nothing to hand back: memory goes with the object."""

    def _sample(self, hidden: Tensor, step: StepPlan) -> tuple[NDArray[np.int32], Logprobs | None]:
        """Only the last token of a sampled sequence goes through the lm_head."""
        last_rows = step.token_indptr[1:][step.is_sampled] - 1
        seq_ids, num_outputs = step.seq_ids[step.is_sampled], step.num_outputs[step.is_sampled]
        logits = self._model.logits(hidden[torch.from_numpy(last_rows)]).float()
        sampling = self._requests.sampling
        parameters = RowParameters.of_sequences(sampling, seq_ids, num_outputs, self._model.config.vocab_size)
        token_ids = sample(self._penalties.apply(logits, seq_ids), parameters)
        return token_ids, logprobs_of(logits, token_ids, sampling.logprobs[seq_ids])
