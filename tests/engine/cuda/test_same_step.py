"""Who reads what another sequence computes in the same step, and where a step may be cut then."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cuda_batch import PAGE_SIZE, step_of
from test_cut import COST, RATES, SPLITS

from blendserve_core.engine.cuda.cut import choose_cut
from blendserve_core.engine.cuda.same_step import same_step_reads, splits_no_read
from blendserve_core.schedule.step import StepPlan


def joined(step: StepPlan, reader: int, writer: int, num_pages: int) -> StepPlan:
    """``reader`` begins on the first pages of ``writer``."""
    pages = step.page_indices.copy()
    first, source = step.page_indptr[reader], step.page_indptr[writer]
    pages[first : first + num_pages] = pages[source : source + num_pages]
    return replace(step, page_indices=pages)


def apart(counts: list[int], contexts: list[int]) -> StepPlan:
    return step_of(np.array(counts), np.array(contexts), np.zeros(len(counts), np.int64))


def test_a_reader_is_paired_with_each_sequence_that_computes_a_page_of_its_prefix() -> None:
    step = apart([1, 9, 6, 3], [30, 0, 4, 12])
    step = joined(joined(step, 3, 2, 2), 2, 1, 1)  # 3 reads two pages of 2, and 2 had the first of them from 1
    step = joined(step, 3, 1, 1)
    readers, writers = same_step_reads(step, PAGE_SIZE)
    assert sorted(zip(readers.tolist(), writers.tolist(), strict=True)) == [(2, 1), (3, 1), (3, 2)]


def test_what_was_computed_before_is_read_by_anybody() -> None:
    readers, _ = same_step_reads(joined(apart([5, 3], [8, 8]), 1, 0, 2), PAGE_SIZE)
    assert len(readers) == 0


def test_one_token_of_a_prompt_may_complete_a_page_that_others_read() -> None:
    step = replace(joined(apart([1, 1], [3, 4]), 1, 0, 1), is_sampled=np.array([False, True]))
    readers, writers = same_step_reads(step, PAGE_SIZE)
    assert (readers.tolist(), writers.tolist()) == ([1], [0])


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_cut_is_allowed_exactly_where_it_leaves_no_reader_before_its_writer(data: st.DataObject) -> None:
    num = data.draw(st.integers(1, 9))
    order = np.array(data.draw(st.permutations(range(num))))
    pairs = data.draw(st.lists(st.tuples(st.integers(0, num - 1), st.integers(0, num - 1)), max_size=6))
    readers, writers = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    for place, is_allowed in enumerate(splits_no_read(order, readers, writers).tolist()):
        before, behind = set(order[:place].tolist()), set(order[place:].tolist())
        assert is_allowed == (not any(reader in before and writer in behind for reader, writer in pairs))


def prompts_beside_decodes(num_new_of_last: int = 200) -> StepPlan:
    """100 decodes, then nine prompts, the first and the last of which may have begun."""
    return apart([1] * 100 + [200] * 8 + [num_new_of_last], [3000] * 100 + [2 * PAGE_SIZE] + [0] * 7 + [2 * PAGE_SIZE])


def test_prompts_that_have_nothing_to_do_with_each_other_are_put_into_different_parts() -> None:
    first, second = choose_cut(prompts_beside_decodes(), COST, RATES, SPLITS, PAGE_SIZE).nano_batches
    assert 100 in first
    assert 108 in second


@pytest.mark.parametrize("num_new", [1, 200], ids=["a last token", "a whole prompt"])
@pytest.mark.parametrize("writer", range(101, 108))
def test_who_comes_behind_the_one_whose_beginning_it_reads_stands_in_its_part_or_in_the_later_one(
    writer: int, num_new: int
) -> None:
    step = joined(prompts_beside_decodes(num_new), 108, writer, 2)
    first, second = choose_cut(step, COST, RATES, SPLITS, PAGE_SIZE).nano_batches
    assert not (108 in first and writer in second)


@pytest.mark.parametrize("writer", range(101, 108))
def test_who_comes_before_it_never_stands_in_the_earlier_one(writer: int) -> None:
    parts = choose_cut(joined(prompts_beside_decodes(), 100, writer, 2), COST, RATES, SPLITS, PAGE_SIZE).nano_batches
    assert len(parts) == 1 or not (100 in parts[0] and writer in parts[1])
