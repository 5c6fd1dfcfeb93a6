"""From a StepPlan to the index arrays of one nano-batch, without a Python loop over sequences or tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.engine.cpu.layout import num_new_tokens
from blendserve_core.schedule.step import StepPlan

Ints = NDArray[np.int32]
# A pass of its own over shared prefixes is two launches per layer and a merge, and saves the time to read this many tokens.
MIN_TOKENS_SAVED = 16_384


@dataclass(frozen=True, slots=True)
class PageTable:
    """Pages of some sequences in FlashInfer's form: CSR, and 1..page_size tokens in each last page."""

    indptr: Ints
    indices: Ints
    last_page_lens: Ints


@dataclass(frozen=True, slots=True)
class BatchArrays:
    """Some sequences of a step: D with one new token first, of these S that share prefixes foremost. R sequences, T rows.

    sequences         [R] their places in the StepPlan
    token_ids         [T] new tokens; below 0 where the token is the one that the step before samples
    positions         [T] in the sequence
    sequence_of_row   [T] 0..R - 1;  table_positions [T]: positions counted from the first page in ``own``
    row_indptr        [R + 1] rows of each sequence
    own               pages of each sequence, without those of a prefix that is read in a pass of its own
    shared_indptr     [G + 1] rows of each group with a prefix of its own, all of the S foremost rows
    shared            [G] pages of the prefixes
    """

    sequences: NDArray[np.int64]
    num_decodes: int
    token_ids: Ints
    positions: Ints
    sequence_of_row: Ints
    table_positions: Ints
    row_indptr: Ints
    own: PageTable
    shared_indptr: Ints
    shared: PageTable

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.sequences)

    @property
    def num_shared_rows(self) -> int:
        return int(self.shared_indptr[-1])


def batch_arrays(
    step: StepPlan, sequences: NDArray[np.int64], page_size: int, min_tokens_saved: int = MIN_TOKENS_SAVED
) -> BatchArrays:
    """Lay out ``sequences`` (places in ``step``) as one nano-batch."""
    counts = num_new_tokens(step)
    decodes, chunks = sequences[counts[sequences] == 1], sequences[counts[sequences] > 1]
    decodes, shared_indptr = _sharers_first(step, decodes, min_tokens_saved)
    sequences = np.concatenate([decodes, chunks])
    num_shared = int(shared_indptr[-1])
    first_members = sequences[shared_indptr[:-1]]
    first_pages = np.zeros(len(sequences), dtype=np.int32)
    first_pages[:num_shared] = step.prefix_lens[sequences[:num_shared]] // page_size
    counts = counts[sequences]
    row_indptr = _indptr(counts)
    sequence_of_row = np.repeat(np.arange(len(sequences), dtype=np.int32), counts)
    offsets = np.arange(row_indptr[-1], dtype=np.int32) - row_indptr[sequence_of_row]
    positions = step.context_lens[sequences][sequence_of_row] + offsets
    return BatchArrays(
        sequences=sequences,
        num_decodes=len(decodes),
        token_ids=step.token_ids[step.token_indptr[sequences][sequence_of_row] + offsets],
        positions=positions,
        sequence_of_row=sequence_of_row,
        table_positions=positions - first_pages[sequence_of_row] * np.int32(page_size),
        row_indptr=row_indptr,
        own=_page_table(step, sequences, first_pages, np.diff(step.page_indptr)[sequences] - first_pages),
        shared_indptr=shared_indptr,
        shared=_prefix_table(step, first_members, page_size),
    )


def padded(batch: BatchArrays, num_rows: int, padding_page: int) -> BatchArrays:
    """A nano-batch of decodes alone, filled up to ``num_rows`` by rows that read and write nothing but ``padding_page``."""
    num_more = num_rows - batch.num_rows
    assert batch.num_decodes == batch.num_sequences, "only decodes are padded"
    assert num_more >= 0, f"{batch.num_rows} rows are more than {num_rows}"

    def fill(array: Ints, value: int) -> Ints:
        return np.concatenate([array, np.full(num_more, value, dtype=np.int32)])

    def go_on(indptr: Ints) -> Ints:
        return np.concatenate([indptr, indptr[-1] + np.arange(1, num_more + 1, dtype=np.int32)])

    return BatchArrays(
        sequences=batch.sequences,
        num_decodes=num_rows,
        token_ids=fill(batch.token_ids, 0),
        positions=fill(batch.positions, 0),
        sequence_of_row=go_on(batch.sequence_of_row) if batch.num_rows else np.arange(num_rows, dtype=np.int32),
        table_positions=fill(batch.table_positions, 0),
        row_indptr=go_on(batch.row_indptr),
        own=PageTable(go_on(batch.own.indptr), fill(batch.own.indices, padding_page), fill(batch.own.last_page_lens, 1)),
        shared_indptr=batch.shared_indptr,
        shared=batch.shared,
    )


def _sharers_first(step: StepPlan, decodes: NDArray[np.int64], min_tokens_saved: int) -> tuple[NDArray[np.int64], Ints]:
    """Decodes with those that read a prefix together in front, prefix by prefix, and the bounds of these groups."""
    lens, nodes = step.prefix_lens[decodes], step.prefix_nodes[decodes]
    nodes = np.where((lens > 0) & (step.context_lens[decodes] >= lens), nodes, -1)
    _, group, sizes = np.unique(nodes, return_inverse=True, return_counts=True)
    is_shared = (nodes >= 0) & (sizes[group] > 1)
    # Each group reads its prefix once where each member would.
    num_saved = float((lens[is_shared] * (1 - 1 / sizes[group[is_shared]])).sum())
    if num_saved < min_tokens_saved:
        is_shared[:] = False
    order = np.lexsort((group, ~is_shared))
    groups = group[order][: int(is_shared.sum())]
    bounds = np.flatnonzero(np.diff(groups)) + 1
    ends = [len(groups)] if len(groups) else []
    return decodes[order], np.concatenate([[0], bounds, ends]).astype(np.int32)


def _page_table(step: StepPlan, sequences: NDArray[np.int64], first_pages: Ints, num_pages: Ints) -> PageTable:
    indptr = _indptr(num_pages)
    starts = step.page_indptr[sequences] + first_pages - indptr[:-1]
    indices = step.page_indices[np.repeat(starts, num_pages) + np.arange(indptr[-1], dtype=np.int32)]
    return PageTable(indptr, indices, step.last_page_lens[sequences])


def _prefix_table(step: StepPlan, first_members: NDArray[np.int64], page_size: int) -> PageTable:
    """Pages of each group's prefix, which are full."""
    num_pages = step.prefix_lens[first_members] // page_size
    table = _page_table(step, first_members, np.zeros_like(num_pages), num_pages)
    return PageTable(table.indptr, table.indices, np.full(len(first_members), page_size, dtype=np.int32))


def _indptr(lens: NDArray[np.int32]) -> Ints:
    indptr = np.zeros(len(lens) + 1, dtype=np.int32)
    np.cumsum(lens, out=indptr[1:])
    return indptr
