import numpy as np
import pytest

from blendserve_core.kv.pages import PagePool


def test_pages_are_handed_out_once_and_come_back():
    pool = PagePool(5)
    first, second = pool.allocate(3), pool.allocate(2)
    assert sorted([*first, *second]) == [0, 1, 2, 3, 4]
    assert pool.num_free == 0
    pool.release(first)
    assert sorted(pool.allocate(3)) == sorted(first)


def test_a_page_with_two_holders_is_free_only_after_both_released_it():
    pool = PagePool(2)
    page = pool.allocate(1)
    pool.hold(int(page[0]))
    pool.release(page)
    assert pool.num_free == 1
    pool.release(page)
    assert pool.num_free == 2


def test_releasing_a_free_page_is_our_bug():
    pool = PagePool(2)
    page = pool.allocate(1)
    pool.release(page)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(page)


def test_more_pages_than_free_is_our_bug():
    with pytest.raises(AssertionError, match="3 pages asked, 2 free"):
        PagePool(2).allocate(3)


def test_releasing_nothing_changes_nothing():
    pool = PagePool(2)
    pool.release(np.empty(0, dtype=np.int32))
    assert pool.num_free == 2
