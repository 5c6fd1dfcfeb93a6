"""The seam between scheduler and executor: what one step processes, and what came of it. numpy and stdlib only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step as ``{sequence: number of tokens}``; prefill, chunk and decode differ only in that number.

    Sequences with one new token whose prompt is done (decodes) come first. S = sequences in the step, T = their new tokens.

    seq_ids          [S] request index in the RequestTable, the key of every per-sequence state
    token_indptr     [S + 1] CSR over ``token_ids``
    token_ids        [T] new tokens, in sequence order; -1 - j stands for the j-th token that the step before samples, which
                     only the executor has so far (see :meth:`LaunchingExecutor.may_be_followed`)
    context_lens     [S] tokens whose KV is already in the pages, or is computed in this very step by a sequence that shares the
                     prompt's beginning; the new ones get positions context_len, context_len + 1, ...
    page_indptr      [S + 1] CSR over ``page_indices``, pages after this step's tokens are appended (FlashInfer's layout)
    page_indices     [num_pages_listed] physical pages in position order
    last_page_lens   [S] tokens in the last page after the append, 1..page_size
    is_sampled       [S] whether a token is sampled from the last new token's logits
    num_outputs      [S] output tokens the sequence had before this step (position of the sampled token in the output)
    prefix_nodes     [S] deepest cached prefix-tree node it reads, -1 without one; equal ids share ``prefix_lens`` tokens
    prefix_lens      [S] tokens (a multiple of the page size) whose pages are the same for every sequence with that node
    finished_seq_ids sequences that ended or were retracted since the last step; executors drop their state
    copy_src_pages / copy_dst_pages / copy_lens
                     first ``copy_lens`` slots of a page to copy, in every layer, before anything else in the step runs;
                     no page is both a source and a destination in one step
    """

    seq_ids: NDArray[np.int64]
    token_indptr: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    page_indptr: NDArray[np.int32]
    page_indices: NDArray[np.int32]
    last_page_lens: NDArray[np.int32]
    is_sampled: NDArray[np.bool_]
    num_outputs: NDArray[np.int32]
    prefix_nodes: NDArray[np.int32]
    prefix_lens: NDArray[np.int32]
    finished_seq_ids: NDArray[np.int64]
    copy_src_pages: NDArray[np.int32]
    copy_dst_pages: NDArray[np.int32]
    copy_lens: NDArray[np.int32]

    @property
    def num_sequences(self) -> int:
        return len(self.seq_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of the sampled tokens, before temperature and truncation. N = sampled rows, K = widest request.

    chosen  [N] float32; top_token_ids, top [N, K], sorted from likely to unlikely
    """

    chosen: NDArray[np.float32]
    top_token_ids: NDArray[np.int32]
    top: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave: one token per sampled row in step order, and the seconds it took (measured or modelled).

    ``compute_s`` and ``memory_s`` are the two resources' own times where the executor knows them, else None.
    ``logprobs`` is None unless some sampled row asked for them. ``completed`` requests have a text that is whole: their
    format allows nothing more.
    """

    token_ids: NDArray[np.int32]
    seconds: float
    compute_s: float | None = None
    memory_s: float | None = None
    logprobs: Logprobs | None = None
    completed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an executor can hold: KV pages of ``page_size`` tokens each, and the size of a step and of a sequence."""

    num_pages: int
    page_size: int
    max_step_tokens: int
    max_sequences: int
    max_sequence_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.num_pages * self.page_size


class Executor(Protocol):
    """Runs step plans. Streams, ranks, nano-batches and kernels stay behind this line; it never asks what comes next."""

    @property
    def capacity(self) -> Capacity: ...

    def execute(self, step: StepPlan) -> StepResult: ...

    def close(self) -> None: ...


@runtime_checkable
class LaunchingExecutor(Executor, Protocol):
    """An executor whose device works by itself: ``execute`` in two parts, with time for others between them.

    Steps are finished in the order of their launches, and at most one more is launched before.
    """

    def launch(self, step: StepPlan) -> Any: ...

    def finish(self, launched: Any) -> StepResult: ...

    def may_be_followed(self, step: StepPlan) -> bool:
        """Whether the step after this one may be launched before this one is finished, with unseen tokens in it."""
        ...


def unseen_tokens(samples: NDArray[np.int64]) -> NDArray[np.int32]:
    """What stands in a StepPlan for the tokens with these numbers among those that the step before samples."""
    return (-1 - samples).astype(np.int32)
