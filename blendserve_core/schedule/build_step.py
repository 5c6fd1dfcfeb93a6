"""From running rows and their new tokens to the arrays of a StepPlan."""

from __future__ import annotations

import numba
import numpy as np

from blendserve_core.kv.block_lists import BLOCK, read, read_many
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
    context_lens = running.num_computed[step_rows]
    token_indptr, page_indptr, last_page_lens, is_sampled = _lengths(running, step_rows, page_size)
    token_ids = _token_ids(running, store, step_rows, token_indptr, prompts)
    page_indices = np.empty(page_indptr[-1], dtype=np.int32)
    read_many(store, running.rows["first_page_block"][step_rows], page_indptr, page_indices)
    prefix_lens = running.rows["first_private_page"][step_rows] * np.int32(page_size)
    has_prefix = (prefix_lens > 0) & (context_lens >= prefix_lens)
    return (
        running.seq_ids[step_rows],
        token_indptr,
        token_ids,
        context_lens,
        page_indptr,
        page_indices,
        last_page_lens,
        is_sampled,
        running.num_outputs[step_rows],
        np.where(has_prefix, running.rows["prefix_node"][step_rows], np.int32(-1)),
        np.where(has_prefix, prefix_lens, np.int32(0)),
    )


@numba.njit(cache=True)
def _lengths(running, step_rows, page_size):
    """Tokens and pages of each row as CSR, tokens in its last page, and whether its last known token is in the step."""
    token_indptr = np.zeros(len(step_rows) + 1, dtype=np.int32)
    page_indptr = np.zeros(len(step_rows) + 1, dtype=np.int32)
    last_page_lens = np.empty(len(step_rows), dtype=np.int32)
    is_sampled = np.empty(len(step_rows), dtype=np.bool_)
    for i in range(len(step_rows)):
        row = step_rows[i]
        num_new = running.num_new[row]
        length = running.num_computed[row] + num_new
        token_indptr[i + 1] = token_indptr[i] + num_new
        page_indptr[i + 1] = page_indptr[i] + (length + page_size - 1) // page_size
        last_page_lens[i] = (length - 1) % page_size + 1
        is_sampled[i] = num_new == num_remaining(running, row)
    return token_indptr, page_indptr, last_page_lens, is_sampled


@numba.njit(cache=True, inline="always")
def _is_decode(running, row):
    return running.num_new[row] == 1 and running.num_outputs[row] > 0


@numba.njit(cache=True)
def _token_ids(running, store, step_rows, token_indptr, prompts):
    """New tokens of each row: from its prompt, then from its outputs."""
    rows, values, num_outputs = running.rows, store.values, running.num_outputs
    token_ids = np.empty(token_indptr[-1], dtype=np.int32)
    for i in range(len(step_rows)):
        row = step_rows[i]
        if num_outputs[row] > 0 and num_remaining(running, row) == 1:
            # Its newest output, which lies in the last block, however long the list is.
            token_ids[token_indptr[i]] = values[rows[row].last_output_block, (num_outputs[row] - 1) % BLOCK]
        else:
            _list_tokens(running, store, row, prompts, token_ids, token_indptr[i])
    return token_ids


@numba.njit(cache=True)
def _list_tokens(running, store, row, prompts, token_ids, start):
    columns, position = running.rows[row], running.num_computed[row]
    end = position + running.num_new[row]
    num_from_prompt = max(0, min(end, columns.num_prompt_tokens) - position)
    for k in range(num_from_prompt):
        token_ids[start + k] = prompts[columns.prompt_start + position + k]
    first, last = position + num_from_prompt - columns.num_prompt_tokens, end - columns.num_prompt_tokens
    if first < last:
        read(store, columns.first_output_block, first, last, token_ids, start + num_from_prompt)
