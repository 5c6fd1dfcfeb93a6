"""Repetition, presence and frequency penalties, and the output history they need. Only rows that ask for them pay."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import StepPlan


class Penalties:
    """Keeps the outputs of penalised sequences, as the steps feed them back in.

    Every output token passes through a step before the next one is sampled, also when a retracted sequence is recomputed, so
    the tokens at positions past the prompt are the whole history.
    """

    def __init__(self, requests: RequestTable) -> None:
        sampling = requests.sampling
        self._requests = requests
        self.is_penalised: NDArray[np.bool_] = (
            (sampling.repetition_penalty != 1.0) | (sampling.presence_penalty != 0.0) | (sampling.frequency_penalty != 0.0)
        )
        self._outputs: dict[int, array[int]] = {}

    def follow(self, step: StepPlan) -> None:
        """Drop the sequences that ended, then take in this step's output tokens."""
        for sequence in step.finished_seq_ids.tolist():
            self._outputs.pop(sequence, None)
        for i in np.flatnonzero(self.is_penalised[step.seq_ids]).tolist():
            sequence = int(step.seq_ids[i])
            num_known = int(step.context_lens[i] - self._requests.num_prompt_tokens[sequence])
            tokens = step.token_ids[step.token_indptr[i] : step.token_indptr[i + 1]]
            outputs = self._outputs.setdefault(sequence, array("q"))
            del outputs[max(num_known, 0) :]
            outputs.extend(tokens[max(-num_known, 0) :].tolist())

    def apply(self, logits: Tensor, seq_ids: NDArray[np.int64]) -> Tensor:
        """Penalised copy of ``logits`` [N, V] float32, one row per sequence; the same tensor where no row asks.

        The repetition penalty counts prompt and output, the other two the output alone.
        """
        rows = np.flatnonzero(self.is_penalised[seq_ids])
        if not len(rows):
            return logits
        sequences = seq_ids[rows]
        outputs = [np.array(self._outputs[s], dtype=np.int64) for s in sequences.tolist()]
        prompts = [self._requests.prompt(s).astype(np.int64) for s in sequences.tolist()]
        counts = _token_counts(outputs, logits.shape[1])
        is_seen = (counts > 0) | (_token_counts(prompts, logits.shape[1]) > 0)
        penalised = self._penalise(logits[torch.from_numpy(rows)], counts, is_seen, sequences)
        return logits.index_copy(0, torch.from_numpy(rows), penalised)

    def _penalise(self, logits: Tensor, counts: Tensor, is_seen: Tensor, sequences: NDArray[np.int64]) -> Tensor:
        sampling = self._requests.sampling
        repetition, presence, frequency = (
            torch.from_numpy(column[sequences])[:, None]
            for column in (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        )
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        return torch.where(is_seen, repeated, logits) - frequency * counts - presence * (counts > 0)


def _token_counts(sequences: Sequence[NDArray[np.int64]], vocab_size: int) -> Tensor:
    """How often each token occurs in each sequence, [N, V] float32."""
    counts = torch.zeros(len(sequences), vocab_size)
    for row, tokens in zip(counts, sequences, strict=True):
        row.scatter_add_(0, torch.from_numpy(tokens), torch.ones(len(tokens)))
    return counts
