"""From running rows and their new tokens to the arrays of a StepPlan."""

from __future__ import annotations

import numpy as np

from blendserve_core.kv.block_lists import BLOCK, read
from blendserve_core.kv.compiled import compiled, compiled_inline
from blendserve_core.schedule.running import num_remaining, unpack


@compiled
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


@compiled
def step_columns(step_rows, prompts, page_size, *arrays):
    """The arrays of a StepPlan up to ``prefix_lens``, in its order. ``prompts`` is the flat token store."""
    running, store = unpack(arrays)
    context_lens = running.num_computed[step_rows]
    token_indptr, page_indptr, last_page_lens, is_sampled = _lengths(running, step_rows, page_size)
    token_ids = _token_ids(running, store, step_rows, token_indptr, prompts)
    page_indices = _page_indices(running, store, step_rows, page_indptr)
    prefix_nodes, prefix_lens = _prefixes(running, step_rows, page_size)
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
        prefix_nodes,
        prefix_lens,
    )


@compiled
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


@compiled
def _page_indices(running, store, step_rows, page_indptr):
    rows, values, next_block = running.rows, store.values, store.next_block
    page_indices = np.empty(page_indptr[-1], dtype=np.int32)
    for i in range(len(step_rows)):
        block, start, end = rows[step_rows[i]].first_page_block, page_indptr[i], page_indptr[i + 1]
        while start < end:
            for k in range(min(BLOCK, end - start)):
                page_indices[start + k] = values[block, k]
            block = next_block[block]
            start += BLOCK
    return page_indices


@compiled
def _prefixes(running, step_rows, page_size):
    """The cached prefix that each row reads whole: its node or -1, and its tokens."""
    rows, num_computed = running.rows, running.num_computed
    nodes = np.full(len(step_rows), -1, dtype=np.int32)
    lens = np.zeros(len(step_rows), dtype=np.int32)
    for i in range(len(step_rows)):
        row = step_rows[i]
        prefix_len = rows[row].first_private_page * page_size
        if 0 < prefix_len <= num_computed[row]:
            nodes[i], lens[i] = rows[row].prefix_node, prefix_len
    return nodes, lens


@compiled_inline
def _is_decode(running, row):
    return running.num_new[row] == 1 and running.num_outputs[row] > 0


@compiled
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


@compiled
def _list_tokens(running, store, row, prompts, token_ids, start):
    columns, position = running.rows[row], running.num_computed[row]
    end = position + running.num_new[row]
    num_from_prompt = max(0, min(end, columns.num_prompt_tokens) - position)
    for k in range(num_from_prompt):
        token_ids[start + k] = prompts[columns.prompt_start + position + k]
    first, last = position + num_from_prompt - columns.num_prompt_tokens, end - columns.num_prompt_tokens
    if first < last:
        read(store, columns.first_output_block, first, last, token_ids, start + num_from_prompt)
