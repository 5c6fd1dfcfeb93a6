"""The prefix cache on small trees, page size 4."""

import numpy as np
from compiled_cache import CompiledKv
from request_prompts import table_of

from blendserve_core.kv.arrays import NOT_WAITING
from blendserve_core.kv.segments import no_segments, shared_segments
from blendserve_core.plan.build_tree import build_tree

PAGE = 4
A, B = list(range(8)), list(range(20, 28))
PROMPTS = [[*A, 1], [*A, 2], [*B, 1], [*B, 2], [*A, 3]]


def cache_of(prompts, ranks=None, num_pages=16):
    tree = build_tree(table_of(prompts))
    order = np.arange(len(prompts))
    rank = order if ranks is None else np.array(ranks)
    return CompiledKv(shared_segments(tree, order, PAGE), num_pages, PAGE, tree.request_order, rank)


def serve(cache, request, num_tokens, step=1):
    """Enter a request, compute all its tokens, and leave it running. Returns its page row."""
    match = cache.match(request, step)
    cache.enter(request)
    num_pages = -(-num_tokens // PAGE) - len(match.pages)
    pages = cache.allocate(num_pages)
    row = np.concatenate([match.pages, pages])
    cache.fill(request, match.num_tokens, num_tokens, pages)
    cache.remember_tails(request, match.num_tokens, num_tokens, row, step)
    return row


def end(cache, request, row):
    cache.release(row[cache.private_start(request) // PAGE :])
    cache.leave(request, is_finished=True)


def test_nothing_is_cached_at_first():
    cache = cache_of(PROMPTS)
    match = cache.match(0, step=1)
    assert (match.num_tokens, len(match.pages), match.tail_page) == (0, 0, -1)


def test_what_one_request_computed_the_next_one_reads():
    cache = cache_of(PROMPTS)
    row = serve(cache, 0, 9)
    match = cache.match(1, step=1)
    assert match.num_tokens == 8
    assert match.pages.tolist() == row[:2].tolist()


def test_a_request_waits_while_another_computes_what_it_needs():
    cache = cache_of(PROMPTS)
    cache.match(0, step=1)
    cache.enter(0)
    cache.fill(0, 0, 5, cache.allocate(2))
    assert cache.match(1, step=2) is None
    assert cache.match(2, step=2) is not None


def test_a_retracted_writer_leaves_its_part_to_others():
    cache = cache_of(PROMPTS)
    cache.enter(0)
    cache.fill(0, 0, 5, cache.allocate(2))
    cache.leave(0, is_finished=False)
    assert cache.match(1, step=2).num_tokens == 5


def test_a_segment_is_freed_with_its_last_request():
    cache = cache_of(PROMPTS)
    for request in (0, 1, 4):
        assert cache.num_free == (16 if request == 0 else 14)
        end(cache, request, serve(cache, request, 9))
    assert cache.num_free == 16


def test_the_idle_segment_needed_last_is_evicted_first():
    cache = cache_of(PROMPTS, ranks=[0, 9, 1, 3, 8])
    for request in (0, 2):
        end(cache, request, serve(cache, request, 9))
    assert cache.num_idle_pages == 4
    assert cache.evict(13)
    assert cache.match(1, step=2).num_tokens == 0
    assert cache.match(3, step=2).num_tokens == 8


def test_children_are_evicted_before_their_parents():
    prompts = [[*A, *B, 1], [*A, *B, 2], [*A, 3], [*A, 4]]
    cache = cache_of(prompts, ranks=[0, 1, 2, 3])
    end(cache, 0, serve(cache, 0, 17))
    assert cache.evict(14)
    assert cache.match(1, step=2).num_tokens == 8


def test_a_segment_in_use_is_never_evicted():
    cache = cache_of(PROMPTS)
    serve(cache, 0, 9)
    assert not cache.evict(16)
    assert cache.match(1, step=2).num_tokens == 8


def test_a_tail_is_copied_from_the_next_step_on():
    prompts = [[*A, 50, 51, 1, 1], [*A, 50, 51, 2, 2]]
    cache = cache_of(prompts)
    row = serve(cache, 0, 12, step=1)
    assert cache.match(1, step=1).tail_page == -1
    match = cache.match(1, step=2)
    assert (match.num_tokens, match.num_tail_tokens, match.tail_page) == (8, 2, row[2])


def test_a_tail_outlives_the_request_that_computed_it():
    prompts = [[*A, 50, 51, 1, 1], [*A, 50, 51, 2, 2]]
    cache = cache_of(prompts)
    end(cache, 0, serve(cache, 0, 12, step=1))
    assert cache.num_free == 16 - 3
    assert cache.match(1, step=2).num_tail_tokens == 2
    cache.finish(1)
    assert cache.num_free == 16


def test_a_prefix_shorter_than_a_page_is_shared_as_a_tail():
    tree = build_tree(table_of([[1, 2, 3, 4, 5, 10], [1, 2, 3, 4, 5, 20]]))
    segments = shared_segments(tree, np.arange(2), page_size=8)
    assert (segments.start.tolist(), segments.end.tolist(), segments.num_tail_tokens.tolist()) == ([0], [0], [5])
    cache = CompiledKv(segments, 8, 8, tree.request_order, np.arange(2))
    cache.enter(0)
    row = cache.allocate(1)
    cache.fill(0, 0, 6, row)
    cache.remember_tails(0, 0, 6, row, step=1)
    match = cache.match(1, step=2)
    assert (match.num_tokens, match.num_tail_tokens, match.tail_page) == (0, 5, row[0])
    assert cache.private_start(1) == 0


def test_the_longest_tail_that_is_there_is_copied():
    prompts = [[*range(12), 30], [*range(12), 40], [*range(6), 50]]
    tree = build_tree(table_of(prompts))
    segments = shared_segments(tree, np.arange(3), page_size=16)
    assert segments.num_tail_tokens.tolist() == [6, 12]
    cache = CompiledKv(segments, 8, 16, tree.request_order, np.arange(3))
    cache.enter(2)
    short = cache.allocate(1)
    cache.remember_tails(2, 0, 7, short, step=1)
    assert cache.match(0, step=2).num_tail_tokens == 6
    cache.enter(0)
    cache.remember_tails(0, 6, 13, cache.allocate(1), step=2)
    assert cache.match(1, step=3).num_tail_tokens == 12


def test_a_tail_gives_way_when_nothing_else_is_left_to_free():
    prompts = [[*A, 50, 51, 1, 1], [*A, 50, 51, 2, 2], [*A, 50, 51, 3, 3]]
    cache = cache_of(prompts, num_pages=4)
    end(cache, 0, serve(cache, 0, 12, step=1))
    cache.enter(1)
    assert cache.num_free == 1
    assert cache.evict(2)
    assert cache.match(2, step=2).num_tail_tokens == 0


def test_requests_outside_the_shard_do_not_count():
    tree = build_tree(table_of(PROMPTS))
    segments = shared_segments(tree, np.array([0, 2, 3]), PAGE)
    assert segments.of_request[0] == -1
    assert segments.num_requests.tolist() == [2]
    cache = CompiledKv(segments, 8, PAGE, tree.request_order, np.array([0, NOT_WAITING, 1, 2, NOT_WAITING]))
    assert cache.private_start(0) == 0
    assert cache.private_start(2) == 8


def test_with_sharing_off_every_request_is_alone():
    segments = no_segments(3)
    cache = CompiledKv(segments, 8, PAGE, np.arange(3), np.arange(3))
    cache.enter(1)
    assert cache.match(1, step=1).num_tokens == 0
    assert cache.private_start(1) == 0
