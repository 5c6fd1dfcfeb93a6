"""From a step's logits to its tokens: what each request has written and must write, then the draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from blendserve_core.engine.grammars import Grammars
from blendserve_core.engine.penalties import Penalties
from blendserve_core.engine.sampling import RowParameters, logprobs_of, sample
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Logprobs, StepPlan


@dataclass(frozen=True, slots=True)
class Sampled:
    """The fields of a StepResult that come from sampling. ``token_ids`` is [N], for the sampled rows in step order."""

    token_ids: NDArray[np.int32]
    logprobs: Logprobs | None = None
    completed: frozenset[int] = frozenset()


class Sampler:
    """Samples on the host. Every step goes through :meth:`follow`, also one that samples nothing."""

    def __init__(self, requests: RequestTable, grammars: Grammars | None) -> None:
        assert grammars is not None or not requests.sampling.response_formats, "formats need grammars"
        self._sampling = requests.sampling
        self._penalties = Penalties(requests)
        self._grammars = grammars

    def follow(self, step: StepPlan) -> None:
        """Take in a step before it runs."""
        self._penalties.follow(step)
        if self._grammars is not None:
            self._grammars.follow(step)

    def sample(self, logits: Tensor, step: StepPlan) -> Sampled:
        """Tokens for ``logits`` [N, V] float32, one row for each sampled sequence of the step. May overwrite the logits."""
        seq_ids, num_outputs = step.seq_ids[step.is_sampled], step.num_outputs[step.is_sampled]
        num_top = self._sampling.logprobs[seq_ids]
        weighed = self._penalties.apply(logits, seq_ids)
        if self._grammars is not None:
            weighed = weighed.clone() if weighed is logits and (num_top >= 0).any() else weighed
            self._grammars.mask(weighed, seq_ids)
        token_ids = sample(weighed, RowParameters.of_sequences(self._sampling, seq_ids, num_outputs, logits.shape[1]))
        completed = frozenset() if self._grammars is None else self._grammars.advance(seq_ids, token_ids)
        return Sampled(token_ids, logprobs_of(logits, token_ids, num_top), completed)
