"""Which rows of a step read which pages: each sequence its own, and sequences with a common prefix that prefix once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blendserve_core.engine.cpu.layout import num_new_tokens, token_positions
from blendserve_core.engine.cpu.native.kernels import AttentionGroups
from blendserve_core.engine.cpu.native.layout import PAGE_SIZE
from blendserve_core.perf.cascade import CascadeCosts
from blendserve_core.schedule.step import StepPlan

# Rows that pass over pages together; the kernel cuts longer groups (kMaxUnitRows query heads of one KV head).
MAX_ROWS_PER_PASS = 64
# Rows that share are dealt to the threads in pieces of at least as many.
MIN_ROWS_PER_PIECE = 16


@dataclass(frozen=True, slots=True)
class StepGroups:
    """``own`` lists every row of the step. ``shared`` lists the rows whose prefix is read for all of its readers at once."""

    own: AttentionGroups
    shared: AttentionGroups | None


def group_step(step: StepPlan, costs: CascadeCosts | None, num_threads: int = 1) -> StepGroups:
    """Lay out a step's attention. A sequence in ``shared`` starts its own part behind the prefix; without costs none is."""
    members_of = [] if costs is None else shared_readers(step, costs)
    own_starts = np.zeros(step.num_sequences, dtype=np.int32)
    for members in members_of:
        own_starts[members] = step.prefix_lens[members]
    own = AttentionGroups(
        group_indptr=np.ascontiguousarray(step.token_indptr, dtype=np.int32),
        row_ids=np.arange(step.num_tokens, dtype=np.int32),
        kv_lens=token_positions(step) + 1 - np.repeat(own_starts, num_new_tokens(step)),
        page_starts=step.page_indptr[:-1] + own_starts // PAGE_SIZE,
        page_indices=np.ascontiguousarray(step.page_indices, dtype=np.int32),
    )
    return StepGroups(own, _shared_groups(step, members_of, num_threads) if members_of else None)


def prefix_readers(step: StepPlan) -> list[NDArray[np.int64]]:
    """Sequences by prefix node. One that still computes the prefix has rows that may not see all of it, and stays out."""
    eligible = np.flatnonzero((step.prefix_nodes >= 0) & (step.prefix_lens > 0) & (step.context_lens >= step.prefix_lens))
    nodes = step.prefix_nodes[eligible]
    order = np.argsort(nodes, kind="stable")
    cuts = np.flatnonzero(np.diff(nodes[order])) + 1
    return [members for members in np.split(eligible[order], cuts) if len(members) > 1]


def shared_readers(step: StepPlan, costs: CascadeCosts) -> list[NDArray[np.int64]]:
    """The prefix readers that save passes by sharing; none where it costs the step more than they save."""
    saved_of = [(saved_tokens(step, members), members) for members in prefix_readers(step)]
    num_saved = sum(saved for saved, _ in saved_of)
    return [members for saved, members in saved_of if saved > 0] if costs.pays(num_saved, step.num_tokens) else []


def saved_tokens(step: StepPlan, members: NDArray[np.int64]) -> int:
    """Tokens of KV that are not read again when ``members`` share: decodes all but the first one's, long chunks hardly any."""
    num_rows = num_new_tokens(step)[members]
    passes_alone = int((-(-num_rows // MAX_ROWS_PER_PASS)).sum())
    passes_together = -(-int(num_rows.sum()) // MAX_ROWS_PER_PASS)
    return (passes_alone - passes_together) * int(step.prefix_lens[members[0]])


def _shared_groups(step: StepPlan, members_of: list[NDArray[np.int64]], num_threads: int) -> AttentionGroups:
    """Groups of rows with the same prefix: more than one for a prefix where threads would else have nothing to do."""
    pieces_each = -(-num_threads // len(members_of))
    pieces_of = [_pieces(_rows_of(step, members), pieces_each) for members in members_of]
    num_rows = [len(rows) for pieces in pieces_of for rows in pieces]
    first_members = np.repeat([members[0] for members in members_of], list(map(len, pieces_of)))
    return AttentionGroups(
        group_indptr=np.concatenate([[0], np.cumsum(num_rows)]).astype(np.int32),
        row_ids=np.concatenate([rows for pieces in pieces_of for rows in pieces]),
        kv_lens=np.repeat(step.prefix_lens[first_members], num_rows).astype(np.int32),
        page_starts=step.page_indptr[first_members],
        page_indices=np.ascontiguousarray(step.page_indices, dtype=np.int32),
    )


def _pieces(rows: NDArray[np.int32], num_pieces: int) -> list[NDArray[np.int32]]:
    return np.array_split(rows, max(1, min(num_pieces, len(rows) // MIN_ROWS_PER_PIECE)))


def _rows_of(step: StepPlan, members: NDArray[np.int64]) -> NDArray[np.int32]:
    bounds = zip(step.token_indptr[members].tolist(), step.token_indptr[members + 1].tolist(), strict=True)
    return np.concatenate([np.arange(start, end, dtype=np.int32) for start, end in bounds])
