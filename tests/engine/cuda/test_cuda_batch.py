"""The index arrays of a nano-batch against a naive twin, sequence by sequence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from blendserve_core.engine.cuda.batch import BatchArrays, batch_arrays, padded
from blendserve_core.schedule.step import StepPlan

PAGE_SIZE = 4


def step_of(counts: np.ndarray, contexts: np.ndarray, nodes: np.ndarray) -> StepPlan:
    """Sequences of ``counts`` new tokens; those with node 1 share one page, with node 2 two pages, where they are that long."""
    lens = counts + contexts
    prefix_lens = np.where(contexts >= nodes * PAGE_SIZE, nodes * PAGE_SIZE, 0).astype(np.int32)
    nodes = np.where(prefix_lens > 0, nodes, -1).astype(np.int32)
    num_pages = -(-lens // PAGE_SIZE)
    pages = [np.arange(1000 * i, 1000 * i + num) for i, num in enumerate(num_pages.tolist(), start=1)]
    for own, node, prefix_len in zip(pages, nodes.tolist(), prefix_lens.tolist(), strict=True):
        own[: prefix_len // PAGE_SIZE] = 10 * node + np.arange(prefix_len // PAGE_SIZE)
    none, num = np.empty(0, np.int32), len(counts)
    return StepPlan(
        seq_ids=np.arange(num) + 70,
        token_indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        token_ids=np.arange(counts.sum(), dtype=np.int32) + 500,
        context_lens=contexts.astype(np.int32),
        page_indptr=np.concatenate([[0], np.cumsum(num_pages)]).astype(np.int32),
        page_indices=np.concatenate(pages).astype(np.int32),
        last_page_lens=((lens - 1) % PAGE_SIZE + 1).astype(np.int32),
        is_sampled=np.ones(num, bool),
        num_outputs=np.ones(num, np.int32),
        prefix_nodes=nodes,
        prefix_lens=prefix_lens,
        finished_seq_ids=np.empty(0, np.int64),
        copy_src_pages=none,
        copy_dst_pages=none,
        copy_lens=none,
    )


@st.composite
def steps(draw: st.DrawFn) -> tuple[StepPlan, np.ndarray]:
    num = draw(st.integers(1, 12))

    def ints(low: int, high: int) -> np.ndarray:
        return draw(hnp.arrays(np.int64, num, elements=st.integers(low, high)))

    step = step_of(ints(1, 3), ints(0, 20), ints(0, 2))
    chosen = np.flatnonzero(draw(hnp.arrays(bool, num)))
    return step, chosen if len(chosen) else np.arange(num)


@settings(max_examples=150, deadline=None)
@given(steps(), st.sampled_from([0, 12, 10**9]))
def test_every_row_reads_its_own_context_and_writes_its_own_slot(case: tuple[StepPlan, np.ndarray], threshold: int) -> None:
    step, chosen = case
    batch = batch_arrays(step, chosen, PAGE_SIZE, threshold)
    assert sorted(batch.sequences.tolist()) == chosen.tolist()
    for name in ("token_ids", "positions", "sequence_of_row", "table_positions", "row_indptr", "shared_indptr"):
        assert getattr(batch, name).dtype == np.int32, name
    group_of = np.repeat(np.arange(len(batch.shared_indptr) - 1), np.diff(batch.shared_indptr))
    for i, sequence in enumerate(batch.sequences.tolist()):
        prefix = pages_of(batch.shared, group_of[i]) if i < batch.num_shared_rows else np.empty(0, np.int32)
        own = pages_of(batch.own, i)
        all_pages = step.page_indices[step.page_indptr[sequence] : step.page_indptr[sequence + 1]]
        assert np.concatenate([prefix, own]).tolist() == all_pages.tolist()
        rows = slice(batch.row_indptr[i], batch.row_indptr[i + 1])
        tokens = step.token_ids[step.token_indptr[sequence] : step.token_indptr[sequence + 1]]
        assert batch.token_ids[rows].tolist() == tokens.tolist()
        positions = step.context_lens[sequence] + np.arange(len(tokens))
        assert batch.positions[rows].tolist() == positions.tolist()
        assert (batch.sequence_of_row[rows] == i).all()
        assert own[batch.table_positions[rows] // PAGE_SIZE].tolist() == all_pages[positions // PAGE_SIZE].tolist()
        assert batch.own.last_page_lens[i] == step.last_page_lens[sequence]
    assert (np.diff(batch.row_indptr)[: batch.num_decodes] == 1).all()
    assert (batch.shared.last_page_lens == PAGE_SIZE).all()


def pages_of(table, sequence: int) -> np.ndarray:
    return table.indices[table.indptr[sequence] : table.indptr[sequence + 1]]


def three_readers() -> StepPlan:
    return step_of(np.array([1, 1, 2, 1, 1]), np.array([9, 3, 9, 10, 12]), np.array([2, 0, 2, 2, 2]))


def test_decodes_that_share_a_prefix_stand_foremost_and_read_it_once() -> None:
    batch = batch_arrays(three_readers(), np.arange(5), PAGE_SIZE, min_tokens_saved=16)
    assert batch.sequences.tolist() == [0, 3, 4, 1, 2]
    assert batch.shared_indptr.tolist() == [0, 3]
    assert batch.shared.indices.tolist() == [20, 21]


def test_a_prefix_that_saves_too_little_is_read_by_each() -> None:
    batch = batch_arrays(three_readers(), np.arange(5), PAGE_SIZE, min_tokens_saved=17)
    assert batch.num_shared_rows == 0
    assert len(batch.shared.indices) == 0


def test_padding_rows_touch_the_padding_page_alone() -> None:
    step = replace(three_readers())
    batch = batch_arrays(step, np.array([0, 1, 3]), PAGE_SIZE, min_tokens_saved=10**9)
    filled = padded(batch, 8, padding_page=99)
    assert_sound(filled)
    assert filled.num_rows == filled.num_decodes == 8
    assert filled.own.indices[batch.own.indptr[-1] :].tolist() == [99] * 5
    assert filled.own.indices[: batch.own.indptr[-1]].tolist() == batch.own.indices.tolist()
    assert filled.sequence_of_row.tolist() == list(range(8))
    assert filled.table_positions[3:].tolist() == [0] * 5


def assert_sound(batch: BatchArrays) -> None:
    assert len(batch.row_indptr) == len(batch.own.indptr) == len(batch.own.last_page_lens) + 1
    assert batch.row_indptr[-1] == batch.num_rows == len(batch.positions) == len(batch.table_positions)
    assert batch.own.indptr[-1] == len(batch.own.indices)


def test_chunks_are_not_padded() -> None:
    batch = batch_arrays(three_readers(), np.arange(5), PAGE_SIZE)
    with pytest.raises(AssertionError, match="only decodes are padded"):
        padded(batch, 64, padding_page=99)
