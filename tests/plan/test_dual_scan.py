import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendserve_core.plan.dual_scan import memory_split

densities = st.floats(1e-3, 1e3)


def test_the_papers_worked_example():
    # The paper rounds its densities, so its 19.3 and 40.7 GB are met to a tenth.
    assert memory_split(3.73, 0.096, 1.27, 60.0) == pytest.approx((19.3, 40.7), abs=0.1)


@given(densities, densities, densities, st.floats(0, 1e12))
def test_both_sides_share_all_memory(left, right, root, memory):
    memory_left, memory_right = memory_split(left, right, root, memory)
    assert memory_left >= 0
    assert memory_right >= 0
    assert memory_left + memory_right == pytest.approx(memory)


@given(densities, densities, st.floats(0.01, 0.99))
def test_the_blend_has_the_roots_density(left, right, mix):
    root = mix * left + (1 - mix) * right
    memory_left, memory_right = memory_split(left, right, root, 100.0)
    assert memory_left * left + memory_right * right == pytest.approx(100.0 * root, rel=1e-6)


def test_a_root_beyond_both_sides_gives_all_to_the_nearer():
    assert memory_split(2.0, 1.0, 5.0, 10.0) == (10.0, 0.0)
    assert memory_split(2.0, 1.0, 0.5, 10.0) == (0.0, 10.0)


def test_equal_sides_share_alike():
    assert memory_split(1.0, 1.0, 1.0, 10.0) == (5.0, 5.0)
    assert memory_split(math.inf, math.inf, 1.0, 10.0) == (5.0, 5.0)


def test_a_side_that_reads_no_kv_needs_next_to_none():
    left, right = memory_split(math.inf, 0.5, 1.0, 10.0)
    assert left == pytest.approx(0, abs=1e-9)
    assert right == pytest.approx(10)


def test_negative_memory_is_refused():
    with pytest.raises(ValueError, match="memory to split is -1"):
        memory_split(2.0, 1.0, 1.5, -1)
