"""From running rows and their token counts to the arrays of a StepPlan."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from blendserve_core.schedule.running import Running
from blendserve_core.schedule.step import StepPlan


def step_rows(running: Running, counts: NDArray[np.int32]) -> tuple[NDArray[np.int64], int]:
    """Rows with tokens in the step, decodes first, and how many decodes there are. ``counts`` is [num_running]."""
    is_decode = (counts == 1) & (running.num_outputs > 0)
    decodes, prefills = np.flatnonzero(is_decode), np.flatnonzero(~is_decode & (counts > 0))
    return np.concatenate([decodes, prefills]), len(decodes)


def build_step(
    running: Running,
    rows: NDArray[np.int64],
    counts: NDArray[np.int32],
    prompts: NDArray[np.int32],
    page_size: int,
    copies: NDArray[np.int32],
    dropped: list[int],
) -> StepPlan:
    """The step in which ``rows`` process ``counts`` tokens each; ``prompts`` is the flat token store."""
    context_lens = running.num_computed[rows]
    lens = context_lens + counts
    token_indptr, page_indptr = _indptr(counts), _indptr(-(-lens // page_size))
    token_ids = np.empty(token_indptr[-1], dtype=np.int32)
    page_indices = np.empty(page_indptr[-1], dtype=np.int32)
    _list_tokens(
        rows, token_indptr, running.slots, running.prompt_starts, running.num_prompt_tokens, running.num_computed,
        prompts, running.outputs, token_ids,
    )  # fmt: skip
    _list_pages(rows, running.slots, page_indptr, running.page_table, page_indices)
    prefix_lens = running.first_private_page[rows] * page_size
    has_prefix = (prefix_lens > 0) & (context_lens >= prefix_lens)
    return StepPlan(
        seq_ids=running.seq_ids[rows],
        token_indptr=token_indptr,
        token_ids=token_ids,
        context_lens=context_lens,
        page_indptr=page_indptr,
        page_indices=page_indices,
        last_page_lens=(lens - 1) % page_size + 1,
        is_sampled=lens == running.num_tokens[rows],
        num_outputs=running.num_outputs[rows],
        prefix_nodes=np.where(has_prefix, running.prefix_nodes[rows], -1).astype(np.int32),
        prefix_lens=np.where(has_prefix, prefix_lens, 0).astype(np.int32),
        finished_seq_ids=np.array(dropped, dtype=np.int64),
        copy_src_pages=copies[:, 0],
        copy_dst_pages=copies[:, 1],
        copy_lens=copies[:, 2],
    )


def _indptr(lens: NDArray[np.int32]) -> NDArray[np.int32]:
    indptr = np.zeros(len(lens) + 1, dtype=np.int32)
    np.cumsum(lens, out=indptr[1:])
    return indptr


@numba.njit(cache=True)
def _list_tokens(rows, token_indptr, slots, prompt_starts, num_prompt_tokens, num_computed, prompts, outputs, token_ids):
    """Each row's next tokens: from its prompt, then from its outputs."""
    for i in range(len(rows)):
        row = rows[i]
        slot, num_prompt, position = slots[row], num_prompt_tokens[row], num_computed[row]
        for j in range(token_indptr[i], token_indptr[i + 1]):
            if position < num_prompt:
                token_ids[j] = prompts[prompt_starts[row] + position]
            else:
                token_ids[j] = outputs[slot, position - num_prompt]
            position += 1


@numba.njit(cache=True)
def _list_pages(rows, slots, page_indptr, page_table, page_indices):
    for i in range(len(rows)):
        slot = slots[rows[i]]
        for j in range(page_indptr[i + 1] - page_indptr[i]):
            page_indices[page_indptr[i] + j] = page_table[slot, j]
