"""Costs of sharing are what timings with and without it say, and stay usable where timings are noise."""

from __future__ import annotations

import pytest

from blendserve_core.perf.cascade import CALL_TOKENS_BOUNDS, MERGE_TOKENS_BOUNDS, CascadeCosts, Saving, sound_costs

CASES = ((64, 1024), (64, 256), (2, 256))


def saving(rows: int, tokens: int, read_s: float = 1e-8, merge_s: float = 3e-7, call_s: float = 4e-5) -> Saving:
    return rows, tokens, (rows - 1) * tokens * read_s - rows * merge_s - call_s


def test_costs_are_the_timings_in_tokens_read() -> None:
    costs = CascadeCosts.from_savings(*(saving(*case) for case in CASES))
    assert costs.merge_tokens == pytest.approx(30)
    assert costs.call_tokens == pytest.approx(4000)


def test_sharing_pays_beyond_its_calls_and_the_merge_of_every_row() -> None:
    costs = CascadeCosts(merge_tokens=30, call_tokens=4000)
    assert costs.pays(num_saved_tokens=4301, num_rows=10)
    assert not costs.pays(num_saved_tokens=4300, num_rows=10)


def test_noise_makes_sharing_neither_free_nor_endless() -> None:
    calls_that_cost_nothing = CascadeCosts.from_savings(*(saving(*case, call_s=-1.0) for case in CASES))
    assert calls_that_cost_nothing.call_tokens == CALL_TOKENS_BOUNDS[0]
    merges_that_cost_nothing = CascadeCosts.from_savings(*(saving(*case, merge_s=-1.0) for case in CASES))
    assert merges_that_cost_nothing.merge_tokens == MERGE_TOKENS_BOUNDS[0]
    reads_that_cost_nothing = CascadeCosts.from_savings(*(saving(*case, read_s=0.0) for case in CASES))
    assert reads_that_cost_nothing == CascadeCosts(MERGE_TOKENS_BOUNDS[1], CALL_TOKENS_BOUNDS[1])


@pytest.mark.parametrize("content", [None, 3, {"merge_tokens": "x"}, {"merge_tokens": 0.0}, {"call_tokens": float("inf")}])
def test_what_is_no_cost_counts_as_none(content: object) -> None:
    assert sound_costs(content) is None
