"""The running sequences as columns, in admission order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

INITIAL_WIDTH = 64

COLUMNS = {
    "seq_ids": np.int64,
    "slots": np.int32,
    "prompt_starts": np.int64,
    "num_prompt_tokens": np.int32,
    "num_tokens": np.int32,
    "num_computed": np.int32,
    "num_pages": np.int32,
    "max_outputs": np.int32,
    "first_private_page": np.int32,
    "num_cached": np.int32,
    "prefix_nodes": np.int32,
}


@dataclass(slots=True)
class Running:
    """Columns of the running sequences; row i is the i-th admitted. Only the scheduler changes them.

    ``num_tokens`` are known (prompt and outputs), ``num_computed`` of them have their KV in ``num_pages`` pages. Page tables
    and outputs are wide, so they do not move when a row does: they are kept by ``slots``.
    """

    seq_ids: NDArray[np.int64]
    slots: NDArray[np.int32]
    prompt_starts: NDArray[np.int64]
    num_prompt_tokens: NDArray[np.int32]
    num_tokens: NDArray[np.int32]
    num_computed: NDArray[np.int32]
    num_pages: NDArray[np.int32]
    max_outputs: NDArray[np.int32]
    first_private_page: NDArray[np.int32]
    num_cached: NDArray[np.int32]
    prefix_nodes: NDArray[np.int32]
    page_table: NDArray[np.int32]
    outputs: NDArray[np.int32]
    num: int = 0
    num_slots_used: int = 0

    @classmethod
    def empty(cls, max_sequences: int) -> Running:
        columns: dict[str, Any] = {name: np.zeros(max_sequences, dtype=dtype) for name, dtype in COLUMNS.items()}
        columns["slots"][:] = np.arange(max_sequences)
        page_table, outputs = np.zeros((2, max_sequences, INITIAL_WIDTH), dtype=np.int32)
        return cls(**columns, page_table=page_table, outputs=outputs)

    @property
    def is_full(self) -> bool:
        return self.num == len(self.seq_ids)

    @property
    def num_outputs(self) -> NDArray[np.int32]:
        return self.num_tokens[: self.num] - self.num_prompt_tokens[: self.num]

    @property
    def num_remaining(self) -> NDArray[np.int32]:
        """[num] tokens that are known but not computed; 1 is a decode."""
        return self.num_tokens[: self.num] - self.num_computed[: self.num]

    def append(self, **values: int) -> int:
        """Add a row and return its number. Its slot is one that no row uses."""
        row = self.num
        for name, value in values.items():
            getattr(self, name)[row] = value
        self.num += 1
        self.num_slots_used = max(self.num_slots_used, self.num)
        return row

    def drop(self, rows: NDArray[np.int64]) -> None:
        """Remove rows, closing the gaps; their slots come after the last row, ready for reuse."""
        is_kept = np.ones(self.num, dtype=np.bool_)
        is_kept[rows] = False
        order = np.concatenate([np.flatnonzero(is_kept), rows])
        for name in COLUMNS:
            column = getattr(self, name)
            column[: self.num] = column[order]
        self.num -= len(rows)

    def outputs_of(self, row: int) -> NDArray[np.int32]:
        """Output tokens of a row so far, a copy."""
        num_outputs = self.num_tokens[row] - self.num_prompt_tokens[row]
        return self.outputs[self.slots[row], :num_outputs].copy()

    def set_outputs(self, row: int, token_ids: NDArray[np.int32]) -> None:
        """Give a row the outputs it had before it was retracted."""
        self.reserve(num_outputs=len(token_ids))
        self.outputs[self.slots[row], : len(token_ids)] = token_ids
        self.num_tokens[row] = self.num_prompt_tokens[row] + len(token_ids)

    def append_outputs(self, rows: NDArray[np.int64], token_ids: NDArray[np.int32]) -> None:
        """Add one output token to each of ``rows``."""
        num_outputs = self.num_outputs[rows]
        self.reserve(num_outputs=int(num_outputs.max(initial=0)) + 1)
        self.outputs[self.slots[rows], num_outputs] = token_ids
        self.num_tokens[rows] += 1

    def reserve(self, *, num_pages: int = 0, num_outputs: int = 0) -> None:
        """Widen page tables or outputs to at least double, so that the given numbers fit."""
        self.page_table = _widened(self.page_table, num_pages, self.num_slots_used)
        self.outputs = _widened(self.outputs, num_outputs, self.num_slots_used)


def _widened(table: NDArray[np.int32], width: int, num_slots_used: int) -> NDArray[np.int32]:
    if width <= table.shape[1]:
        return table
    wider = np.zeros((table.shape[0], max(width, 2 * table.shape[1])), dtype=table.dtype)
    # Slots that no row ever had stay untouched zeros, which take no memory.
    wider[:num_slots_used, : table.shape[1]] = table[:num_slots_used]
    return wider
