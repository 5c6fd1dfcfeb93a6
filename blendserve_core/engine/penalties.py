"""Repetition, presence and frequency penalties, and the output history they need. Only rows that ask for them pay."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from blendserve_core.engine.outputs import new_outputs
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import StepPlan


class Penalties:
    """Keeps the outputs of penalised sequences, as the steps feed them back in."""

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
        for sequence, num_known, tokens in new_outputs(step, self._requests, self.is_penalised):
            outputs = self._outputs.setdefault(sequence, array("q"))
            del outputs[num_known:]
            outputs.extend(tokens.tolist())

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
