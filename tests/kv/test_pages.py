import numpy as np
import pytest
from compiled_cache import CompiledKv

from blendserve_core.kv.segments import no_segments


def pool_of(num_pages):
    nothing = np.arange(0)
    return CompiledKv(no_segments(0), num_pages, 4, nothing, nothing)


def test_pages_are_handed_out_once_and_come_back():
    pool = pool_of(5)
    first, second = pool.allocate(3), pool.allocate(2)
    assert sorted([*first, *second]) == [0, 1, 2, 3, 4]
    assert pool.num_free == 0
    pool.release(first)
    assert pool.allocate(3).tolist() == first.tolist()


def test_a_page_with_two_holders_is_free_only_after_both_released_it():
    pool = pool_of(2)
    page = pool.allocate(1)
    pool.hold(page[0])
    pool.release(page)
    assert pool.num_free == 1
    pool.release(page)
    assert pool.num_free == 2


def test_releasing_a_free_page_is_our_bug():
    pool = pool_of(2)
    page = pool.allocate(1)
    pool.release(page)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(page)


def test_holding_a_free_page_is_our_bug():
    with pytest.raises(AssertionError, match="page is free"):
        pool_of(2).hold(0)


def test_more_pages_than_free_is_our_bug():
    with pytest.raises(AssertionError, match="no page is free"):
        pool_of(2).allocate(3)


def test_releasing_nothing_changes_nothing():
    pool = pool_of(2)
    pool.release(np.empty(0, dtype=np.int32))
    assert pool.num_free == 2
