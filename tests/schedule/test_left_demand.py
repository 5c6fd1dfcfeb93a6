import numpy as np
import pytest

from blendserve_core.schedule.policies.left_demand import LeftDemand
from blendserve_core.schedule.policies.request_times import RequestTimes


def demand(num_own_tokens: list[int], kv_reads: list[float]) -> LeftDemand:
    seconds = np.zeros(len(kv_reads))
    return LeftDemand(RequestTimes(np.array(num_own_tokens, dtype=np.int32), seconds, seconds, np.array(kv_reads)))


def test_requests_hold_memory_for_as_long_as_they_run():
    each = demand([10] * 5, [90.0] * 5)
    each.follow(np.arange(5))
    # Two requests a step, each of which holds 10 + 90 tokens, summed over the steps of its life.
    assert each.kv_tokens(20, position=0, window=3) == pytest.approx(2 * 100)


def test_only_the_window_ahead_counts():
    each = demand([10, 10, 10], [0.0, 90.0, 1000.0])
    each.follow(np.array([2, 0, 1]))
    assert each.kv_tokens(10, position=1, window=1) == pytest.approx(10)
    assert each.kv_tokens(10, position=1, window=2) == pytest.approx((10 + 100) / 2)


def test_at_the_end_of_the_order_nothing_is_needed():
    each = demand([10], [90.0])
    each.follow(np.arange(1))
    assert each.kv_tokens(20, position=1, window=3) == 0.0
