"""A step that was handed out and whose result is not there yet, and which of its sequences have ended meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from blendserve_core.schedule.outcome import Finished
from blendserve_core.schedule.policy import StepOutcome
from blendserve_core.schedule.step import Logprobs, StepPlan, StepResult, unseen_tokens

GONE = -1


@dataclass(frozen=True, slots=True)
class HandedOut:
    """The step's sequences as rows of ``Running``, and its load.

    rows     [S] running row, GONE where the sequence ended after the step was handed out
    samples  [S] which of the step's sampled tokens is the row's, -1 where it has none, or is gone
    """

    rows: NDArray[np.int64]
    samples: NDArray[np.int64]
    num_decodes: int
    num_prefill_tokens: int
    num_kv_tokens_read: int

    @classmethod
    def of(cls, step: StepPlan, rows: NDArray[np.int64], num_decodes: int) -> HandedOut:
        samples = np.where(step.is_sampled, np.cumsum(step.is_sampled) - 1, -1)
        num_kv_tokens_read = int(step.context_lens[:num_decodes].sum())
        return cls(rows, samples, num_decodes, step.num_tokens - num_decodes, num_kv_tokens_read)

    @property
    def live_rows(self) -> NDArray[np.int64]:
        return self.rows[self.rows != GONE]

    @property
    def is_sampled(self) -> NDArray[np.bool_]:
        """Of the live rows."""
        return self.samples[self.rows != GONE] >= 0

    @property
    def unseen_tokens(self) -> NDArray[np.int32]:
        """What stands for the sampled tokens of live rows until they are known."""
        return unseen_tokens(self.samples[self.samples >= 0])

    def without(self, ended: NDArray[np.int64]) -> HandedOut:
        """After ``ended`` rows, in ascending order, were taken out of ``Running`` and the gaps closed."""
        is_gone = np.isin(self.rows, ended)
        rows = np.where(is_gone, GONE, self.rows - np.searchsorted(ended, self.rows))
        return replace(self, rows=rows, samples=np.where(is_gone, -1, self.samples))

    def of_live_rows(self, step: StepPlan, result: StepResult) -> tuple[StepPlan, StepResult]:
        """Step and result as if what it sampled for rows that are gone had never been asked for."""
        is_gone = self.rows == GONE
        if not is_gone.any():
            return step, result
        kept = self.samples[self.samples >= 0]
        logprobs = None if result.logprobs is None else _some(result.logprobs, kept)
        result = replace(result, token_ids=result.token_ids[kept], logprobs=logprobs)
        return replace(step, is_sampled=step.is_sampled & ~is_gone), result

    def outcome(self, result: StepResult, finished: list[Finished]) -> StepOutcome:
        """What the policy sees of it."""
        return StepOutcome(
            num_decode_tokens=self.num_decodes,
            num_prefill_tokens=self.num_prefill_tokens,
            num_kv_tokens_read=self.num_kv_tokens_read,
            result=result,
            finished=np.array([f.request for f in finished], dtype=np.int64),
            finished_num_outputs=np.array([len(f.token_ids) for f in finished], dtype=np.int32),
        )


def _some(logprobs: Logprobs, kept: NDArray[np.int64]) -> Logprobs:
    return Logprobs(logprobs.chosen[kept], logprobs.top_token_ids[kept], logprobs.top[kept])
