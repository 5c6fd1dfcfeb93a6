"""Repetition, presence and frequency penalties, and the output history they need. Only rows that ask for them pay."""

from __future__ import annotations

from array import array

import numpy as np
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
        logits = logits.clone()
        for row, sequence in zip(rows.tolist(), seq_ids[rows].tolist(), strict=True):
            self._penalise(logits[row].numpy(), sequence)
        return logits

    def _penalise(self, logits: NDArray[np.float32], sequence: int) -> None:
        """Change one row [V] in place, at the tokens the sequence has had: a row is long, and they are few."""
        sampling = self._requests.sampling
        outputs = np.array(self._outputs[sequence], dtype=np.int64)
        repetition = sampling.repetition_penalty[sequence]
        if repetition != 1.0:
            seen = np.union1d(self._requests.prompt(sequence), outputs)
            logits[seen] = np.where(logits[seen] > 0, logits[seen] / repetition, logits[seen] * repetition)
        written, counts = np.unique(outputs, return_counts=True)
        logits[written] -= sampling.presence_penalty[sequence] + sampling.frequency_penalty[sequence] * counts
