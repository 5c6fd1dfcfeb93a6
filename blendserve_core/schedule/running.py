"""The running sequences as columns, in admission order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blendserve_core.kv.block_lists import BLOCK, BlockStore, append, discard, doubled, empty_store, read
from blendserve_core.kv.compiled import compiled, compiled_inline

DROPPED = -1
"""New tokens of a row that is being removed."""

ROW = np.dtype(
    [
        ("prompt_start", np.int64),
        ("num_prompt_tokens", np.int32),
        ("max_outputs", np.int32),
        ("num_cached", np.int32),
        ("prefix_node", np.int32),
        ("first_private_page", np.int32),
        ("num_pages", np.int32),
        ("first_page_block", np.int32),
        ("last_page_block", np.int32),
        ("first_output_block", np.int32),
        ("last_output_block", np.int32),
    ],
    align=True,
)


class RunningArrays(NamedTuple):
    """Row i is the i-th admitted. Known tokens are the prompt and the outputs; ``num_computed`` of them have their KV in pages.

    seq_ids [N] int64 request; num_computed, num_outputs [N] int32; num_new [N] int32 tokens in the step that is being built;
    rows [N] ROW: what a policy has no need of
    """

    seq_ids: NDArray[np.int64]
    num_computed: NDArray[np.int32]
    num_outputs: NDArray[np.int32]
    num_new: NDArray[np.int32]
    rows: Any  # fields of its records are attributes in compiled code only


class Running:
    """Owns the arrays of up to ``max_sequences`` running sequences, and the store of their page and output lists."""

    def __init__(self, max_sequences: int) -> None:
        self.num = 0
        self.columns = RunningArrays(
            seq_ids=np.zeros(max_sequences, dtype=np.int64),
            num_computed=np.zeros(max_sequences, dtype=np.int32),
            num_outputs=np.zeros(max_sequences, dtype=np.int32),
            num_new=np.zeros(max_sequences, dtype=np.int32),
            rows=np.zeros(max_sequences, dtype=ROW),
        )
        self.store = empty_store(4 * max_sequences)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What the compiled functions take last: columns and store."""
        return (*self.columns, *self.store)

    @property
    def is_full(self) -> bool:
        return self.num == len(self.columns.seq_ids)

    def reserve(self, num_lists: int, num_values: int) -> None:
        """Have room for ``num_values`` more in all, spread over ``num_lists`` lists."""
        while self.store.free[1] < num_lists + num_values // BLOCK:
            self.store = doubled(self.store)

    def outputs_of(self, row: int) -> NDArray[np.int32]:
        """Output tokens of a row so far, a copy."""
        return _outputs_of(row, *self.arrays)

    def set_outputs(self, row: int, token_ids: NDArray[np.int32]) -> None:
        """Give a row the outputs it had before it was retracted."""
        self.reserve(1, len(token_ids))
        _append_outputs(row, token_ids, *self.arrays)


@compiled
def unpack(arrays):
    """Columns and store from what :attr:`Running.arrays` gave."""
    return RunningArrays(*arrays[:-3]), BlockStore(*arrays[-3:])


@compiled_inline
def num_remaining(running, row):
    """Tokens that are known but not computed; 1 is a decode."""
    return running.rows[row].num_prompt_tokens + running.num_outputs[row] - running.num_computed[row]


@compiled_inline
def is_complete(running, row):
    """Whether a row has all the outputs it may have: it ends, once the last one is known."""
    return running.num_outputs[row] >= running.rows[row].max_outputs


@compiled
def append_page(running, store, row, page):
    columns = running.rows[row]
    columns.last_page_block = append(store, columns.last_page_block, columns.num_pages, page)
    if columns.num_pages == 0:
        columns.first_page_block = columns.last_page_block
    columns.num_pages += 1


@compiled
def append_output(running, store, row, token_id):
    columns = running.rows[row]
    columns.last_output_block = append(store, columns.last_output_block, running.num_outputs[row], token_id)
    if running.num_outputs[row] == 0:
        columns.first_output_block = columns.last_output_block
    running.num_outputs[row] += 1


@compiled
def append_outputs(running, store, rows, token_ids):
    """One output token to each of the rows. Most have room in their last block, which takes no call."""
    columns, values, num_outputs = running.rows, store.values, running.num_outputs
    for i in range(len(rows)):
        row = rows[i]
        offset = num_outputs[row] % BLOCK
        if offset == 0:
            append_output(running, store, row, token_ids[i])
        else:
            values[columns[row].last_output_block, offset] = token_ids[i]
            num_outputs[row] += 1


@compiled
def drop_rows(running, store, num_running, dropped):
    """Remove rows, closing the gaps."""
    for row in dropped:
        columns = running.rows[row]
        discard(store, columns.first_page_block, columns.last_page_block, columns.num_pages)
        discard(store, columns.first_output_block, columns.last_output_block, running.num_outputs[row])
        running.num_new[row] = DROPPED
    num_kept = 0
    for row in range(num_running):
        if running.num_new[row] != DROPPED:
            if num_kept < row:
                _move(running, row, num_kept)
            num_kept += 1


@compiled
def _move(running, row, to_row):
    running.seq_ids[to_row] = running.seq_ids[row]
    running.num_computed[to_row] = running.num_computed[row]
    running.num_outputs[to_row] = running.num_outputs[row]
    running.num_new[to_row] = running.num_new[row]
    running.rows[to_row] = running.rows[row]


@compiled
def _outputs_of(row, *arrays):
    running, store = unpack(arrays)
    outputs = np.empty(running.num_outputs[row], dtype=np.int32)
    read(store, running.rows[row].first_output_block, 0, len(outputs), outputs, 0)
    return outputs


@compiled
def _append_outputs(row, token_ids, *arrays):
    running, store = unpack(arrays)
    for token_id in token_ids:
        append_output(running, store, row, token_id)
