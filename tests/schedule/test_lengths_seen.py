import numpy as np
import pytest

from blendserve_core.plan.plan import LengthEstimates
from blendserve_core.plan.survival import BIN_PROBABILITY, NUM_BINS
from blendserve_core.schedule.policies.lengths_seen import PRIOR_SAMPLES, LengthsSeen

LIMIT = 4096


def lengths_seen(*groups: np.ndarray, requests_each: int = 200, is_guess: bool = False) -> LengthsSeen:
    """A group of requests for each row of bins; all are followed."""
    num_requests = len(groups) * requests_each
    estimates = LengthEstimates(
        mean_tokens=np.ones(num_requests, np.float32),
        second_moment=np.ones(num_requests, np.float32),
        group=np.repeat(np.arange(len(groups), dtype=np.int32), requests_each),
        bin_tokens=np.array(groups, np.float32),
        bin_probability=BIN_PROBABILITY.astype(np.float32),
        is_guess=np.full(len(groups), is_guess),
    )
    return LengthsSeen(estimates, np.arange(num_requests), np.full(num_requests, LIMIT, np.int32))


def mean(seen: LengthsSeen, group: int = 0) -> float:
    return float(seen.bin_tokens[group] @ BIN_PROBABILITY)


SPREAD = np.linspace(50, 150, NUM_BINS)


def test_without_news_the_plan_is_believed():
    seen = lengths_seen(SPREAD)
    seen.refresh(np.arange(3), np.zeros(3, np.int32))
    assert seen.bin_tokens[0] == pytest.approx(SPREAD)


def test_what_ends_moves_the_estimate_towards_what_is_seen():
    seen = lengths_seen(SPREAD)
    seen.observe(np.arange(100), np.full(100, 1000, np.int32))
    seen.refresh(np.arange(0), np.empty(0, np.int32))
    weight = 100 / (100 + PRIOR_SAMPLES)
    assert mean(seen) == pytest.approx(weight * 1000 + (1 - weight) * 100, rel=0.03)


def test_what_still_runs_counts_as_at_least_as_long():
    """Half of the requests are short and half are long; when only the short ones have ended, the others are not forgotten."""
    seen = lengths_seen(SPREAD)
    seen.observe(np.arange(50), np.full(50, 10, np.int32))
    seen.refresh(np.arange(50, 100), np.full(50, 500, np.int32))
    bins = seen.bin_tokens[0]
    assert bins[0] == pytest.approx(10, rel=0.05)
    assert np.mean(bins >= 490) == pytest.approx(0.5, abs=0.15)


def test_groups_are_told_apart():
    seen = lengths_seen(SPREAD, SPREAD)
    seen.observe(np.arange(200, 300), np.full(100, 1000, np.int32))
    seen.refresh(np.arange(0), np.empty(0, np.int32))
    assert mean(seen, 0) == pytest.approx(mean(lengths_seen(SPREAD)))
    assert mean(seen, 1) > 900


def test_known_lengths_stay_as_they_are():
    seen = lengths_seen(np.full(NUM_BINS, 70.0))
    seen.observe(np.arange(10), np.full(10, 1000, np.int32))
    seen.refresh(np.arange(10, 20), np.full(10, 500, np.int32))
    assert seen.bin_tokens[0] == pytest.approx(70.0)


def test_no_length_is_put_beyond_the_limit():
    seen = lengths_seen(SPREAD)
    seen.refresh(np.arange(100), np.full(100, LIMIT - 10, np.int32))
    assert seen.bin_tokens.max() <= 2 * LIMIT
    assert (np.diff(seen.bin_tokens[0]) >= -1e-6).all()


def test_a_guess_stands_until_something_ends_and_is_forgotten_then():
    seen = lengths_seen(SPREAD, is_guess=True)
    seen.refresh(np.arange(50), np.full(50, 400, np.int32))
    assert mean(seen) == pytest.approx(mean(lengths_seen(SPREAD)))
    seen.observe(np.arange(50, 60), np.full(10, 300, np.int32))
    seen.refresh(np.arange(50), np.full(50, 400, np.int32))
    # Ten ended in 50 x 200 + 10 x 100 tokens beyond the age of 200: the rest goes on for 1,100 more on average.
    assert mean(seen) == pytest.approx((10 * 300 + 50 * (400 + 1100)) / 60, rel=0.1)
