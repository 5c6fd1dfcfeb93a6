"""How a step's rows are laid out for attention: own contexts, and prefixes that are read once."""

from __future__ import annotations

import numpy as np

from blendserve_core.engine.cpu.native.grouping import group_step, prefix_readers, saved_tokens
from blendserve_core.perf.cascade import CascadeCosts
from blendserve_core.schedule.step import StepPlan

FREE = CascadeCosts(0, 0)


def step_of(new: list[int], contexts: list[int], nodes: list[int], prefix_lens: list[int]) -> StepPlan:
    """Sequence i has pages 100 * i, 100 * i + 1, ..."""
    num_pages = [-(-(context + n) // 16) for context, n in zip(contexts, new, strict=True)]
    nothing = np.empty(0, dtype=np.int32)
    return StepPlan(
        seq_ids=np.arange(len(new)),
        token_indptr=np.cumsum([0, *new]).astype(np.int32),
        token_ids=np.zeros(sum(new), dtype=np.int32),
        context_lens=np.array(contexts, dtype=np.int32),
        page_indptr=np.cumsum([0, *num_pages]).astype(np.int32),
        page_indices=np.concatenate([100 * i + np.arange(n) for i, n in enumerate(num_pages)]).astype(np.int32),
        last_page_lens=np.ones(len(new), dtype=np.int32),
        is_sampled=np.ones(len(new), dtype=np.bool_),
        num_outputs=np.ones(len(new), dtype=np.int32),
        prefix_nodes=np.array(nodes, dtype=np.int32),
        prefix_lens=np.array(prefix_lens, dtype=np.int32),
        finished_seq_ids=nothing.astype(np.int64),
        copy_src_pages=nothing,
        copy_dst_pages=nothing,
        copy_lens=nothing,
    )


def test_without_prefixes_each_row_reads_its_sequence_up_to_itself() -> None:
    groups = group_step(step_of(new=[1, 3], contexts=[40, 16], nodes=[-1, -1], prefix_lens=[0, 0]), CascadeCosts())
    assert groups.shared is None
    assert groups.own.group_indptr.tolist() == [0, 1, 4]
    assert groups.own.row_ids.tolist() == [0, 1, 2, 3]
    assert groups.own.kv_lens.tolist() == [41, 17, 18, 19]
    assert groups.own.page_indices[groups.own.page_starts].tolist() == [0, 100]


def test_readers_of_a_prefix_read_it_together_and_the_rest_alone() -> None:
    step = step_of(new=[1, 1, 2, 1], contexts=[70, 33, 48, 40], nodes=[7, 9, 7, -1], prefix_lens=[48, 32, 48, 0])
    groups = group_step(step, FREE)
    assert groups.shared is not None
    assert groups.shared.group_indptr.tolist() == [0, 3]
    assert groups.shared.row_ids.tolist() == [0, 2, 3]
    assert groups.shared.kv_lens.tolist() == [48, 48, 48]
    assert groups.shared.page_indices[groups.shared.page_starts].tolist() == [0]
    assert groups.own.kv_lens.tolist() == [71 - 48, 34, 1, 2, 41]
    assert groups.own.page_indices[groups.own.page_starts].tolist() == [3, 100, 203, 300]


def test_a_sequence_that_still_computes_the_prefix_does_not_share_it() -> None:
    step = step_of(new=[40, 1, 1], contexts=[16, 50, 60], nodes=[7, 7, 7], prefix_lens=[48, 48, 48])
    assert [members.tolist() for members in prefix_readers(step)] == [[1, 2]]


def test_a_step_shares_where_the_reading_it_saves_is_worth_its_cost() -> None:
    step = step_of(new=[1] * 3, contexts=[70] * 3, nodes=[7] * 3, prefix_lens=[64] * 3)
    num_saved, num_rows = 2 * 64, 3
    assert group_step(step, CascadeCosts(merge_tokens=2, call_tokens=num_saved - 2 * num_rows - 1)).shared is not None
    assert group_step(step, CascadeCosts(merge_tokens=2, call_tokens=num_saved - 2 * num_rows)).shared is None
    assert group_step(step, None).shared is None


def test_rows_that_share_nothing_bear_the_merge_as_well() -> None:
    costs = CascadeCosts(merge_tokens=1, call_tokens=100)
    alone = step_of(new=[1, 1], contexts=[300] * 2, nodes=[7] * 2, prefix_lens=[208] * 2)
    beside = step_of(new=[1, 1, 200], contexts=[300] * 3, nodes=[7, 7, -1], prefix_lens=[208, 208, 0])
    assert group_step(alone, costs).shared is not None
    assert group_step(beside, costs).shared is None


def test_readers_of_one_prefix_are_dealt_to_the_threads() -> None:
    step = step_of(new=[1] * 40, contexts=[70] * 40, nodes=[7] * 40, prefix_lens=[64] * 40)
    shared = group_step(step, FREE, num_threads=2).shared
    assert shared is not None
    assert shared.group_indptr.tolist() == [0, 20, 40]
    assert shared.row_ids.tolist() == list(range(40))
    assert shared.page_indices[shared.page_starts].tolist() == [0, 0]
    too_few_for_more = group_step(step, FREE, num_threads=8).shared
    assert too_few_for_more is not None
    assert too_few_for_more.num_groups == 2


def test_short_chunks_of_siblings_read_their_prefix_in_common_passes() -> None:
    step = step_of(new=[16] * 4, contexts=[608] * 4, nodes=[7] * 4, prefix_lens=[592] * 4)
    assert saved_tokens(step, np.arange(4)) == 3 * 592
    shared = group_step(step, FREE).shared
    assert shared is not None
    assert shared.group_indptr.tolist() == [0, 64]


def test_long_chunks_of_siblings_already_fill_a_pass_each() -> None:
    step = step_of(new=[64, 64], contexts=[600, 600], nodes=[7, 7], prefix_lens=[592, 592])
    assert saved_tokens(step, np.array([0, 1])) == 0
    assert group_step(step, FREE).shared is None
