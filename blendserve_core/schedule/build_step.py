"""From running rows and their new tokens to the arrays of a StepPlan."""

from __future__ import annotations

import numba
import numpy as np

from blendserve_core.kv.block_lists import BLOCK, read
from blendserve_core.schedule.running import num_remaining, unpack


@numba.njit(cache=True)
def step_rows(num_running, *arrays):
    """Rows with tokens in the step, decodes first, and how many decodes there are. ``arrays`` are those of ``Running``."""
    running, _ = unpack(arrays)
    rows = np.empty(num_running, dtype=np.int64)
    num_decodes = 0
    for row in range(num_running):
        if _is_decode(running, row):
            rows[num_decodes] = row
            num_decodes += 1
    num_rows = num_decodes
    for row in range(num_running):
        if running.num_new[row] > 0 and not _is_decode(running, row):
            rows[num_rows] = row
            num_rows += 1
    return rows[:num_rows], num_decodes


@numba.njit(cache=True)
def step_columns(step_rows, prompts, page_size, *arrays):
    """The arrays of a StepPlan up to ``prefix_lens``, in its order. ``prompts`` is the flat token store."""
    running, store = unpack(arrays)
    num_sequences = len(step_rows)
    seq_ids = running.seq_ids[step_rows]
    context_lens = running.num_computed[step_rows]
    num_outputs = running.num_outputs[step_rows]
    token_indptr = np.zeros(num_sequences + 1, dtype=np.int32)
    page_indptr = np.zeros(num_sequences + 1, dtype=np.int32)
    last_page_lens = np.empty(num_sequences, dtype=np.int32)
    is_sampled = np.empty(num_sequences, dtype=np.bool_)
    prefix_nodes = np.full(num_sequences, -1, dtype=np.int32)
    prefix_lens = np.zeros(num_sequences, dtype=np.int32)
    for i in range(num_sequences):
        row = step_rows[i]
        num_new = running.num_new[row]
        length = context_lens[i] + num_new
        token_indptr[i + 1] = token_indptr[i] + num_new
        page_indptr[i + 1] = page_indptr[i] + (length + page_size - 1) // page_size
        last_page_lens[i] = (length - 1) % page_size + 1
        is_sampled[i] = num_new == num_remaining(running, row)
        prefix_len = running.rows[row].first_private_page * page_size
        if 0 < prefix_len <= context_lens[i]:
            prefix_nodes[i], prefix_lens[i] = running.rows[row].prefix_node, prefix_len
    token_ids = np.empty(token_indptr[-1], dtype=np.int32)
    page_indices = np.empty(page_indptr[-1], dtype=np.int32)
    for i in range(num_sequences):
        first_page_block = running.rows[step_rows[i]].first_page_block
        read(store, first_page_block, 0, page_indptr[i + 1] - page_indptr[i], page_indices, page_indptr[i])
        _list_tokens(running, store, step_rows[i], prompts, token_ids, token_indptr[i])
    return (
        seq_ids,
        token_indptr,
        token_ids,
        context_lens,
        page_indptr,
        page_indices,
        last_page_lens,
        is_sampled,
        num_outputs,
        prefix_nodes,
        prefix_lens,
    )


@numba.njit(cache=True)
def _is_decode(running, row):
    return running.num_new[row] == 1 and running.num_outputs[row] > 0


@numba.njit(cache=True)
def _list_tokens(running, store, row, prompts, token_ids, start):
    """A row's next tokens: from its prompt, then from its outputs."""
    columns = running.rows[row]
    position, end = running.num_computed[row], running.num_computed[row] + running.num_new[row]
    num_from_prompt = max(0, min(end, columns.num_prompt_tokens) - position)
    for k in range(num_from_prompt):
        token_ids[start + k] = prompts[columns.prompt_start + position + k]
    first, last = position + num_from_prompt - columns.num_prompt_tokens, end - columns.num_prompt_tokens
    if last - first == 1 and last == running.num_outputs[row]:
        # A decode: the newest output lies in the last block, however long the list is.
        token_ids[start + num_from_prompt] = store.values[columns.last_output_block, first % BLOCK]
    elif first < last:
        read(store, columns.first_output_block, first, last, token_ids, start + num_from_prompt)
