"""The CPU executor: runs step plans on a decoder, an attention over paged KV, and a sampler."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from blendserve_core.engine.cpu.attention import PagedAttention
from blendserve_core.engine.grammars import Grammars
from blendserve_core.engine.model.llama import Decoder
from blendserve_core.engine.sampler import Sampled, Sampler
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Capacity, StepPlan, StepResult
from blendserve_core.trace import NoTrace, Tracer

NOTHING_SAMPLED = Sampled(np.empty(0, dtype=np.int32))


class CpuExecutor:
    """An :class:`~blendserve_core.schedule.step.Executor` in this process. ``attention`` holds ``capacity.num_pages`` pages."""

    def __init__(
        self,
        model: Decoder,
        attention: PagedAttention,
        requests: RequestTable,
        capacity: Capacity,
        grammars: Grammars | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._model = model
        self._attention = attention
        self._capacity = capacity
        self._sampler = Sampler(requests, grammars)
        self._tracer = tracer or NoTrace()

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    @torch.inference_mode()
    def execute(self, step: StepPlan) -> StepResult:
        started = time.perf_counter()
        self._sampler.follow(step)
        self._attention.begin_step(step)
        hidden = self._model.forward(torch.from_numpy(step.token_ids), self._attention.attend)
        with self._tracer.span("sampling"):
            sampled = self._sample(hidden, step) if step.is_sampled.any() else NOTHING_SAMPLED
        return StepResult(
            token_ids=sampled.token_ids,
            seconds=time.perf_counter() - started,
            logprobs=sampled.logprobs,
            completed=sampled.completed,
        )

    def close(self) -> None:
        """Nothing to hand back: memory goes with the object."""

    def _sample(self, hidden: Tensor, step: StepPlan) -> Sampled:
        """Only the last token of a sampled sequence goes through the lm_head."""
        last_rows = step.token_indptr[1:][step.is_sampled] - 1
        logits = self._model.logits(hidden[torch.from_numpy(last_rows)]).float()
        return self._sampler.sample(logits, step)
